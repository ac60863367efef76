"""Stretches of an axis in lanes: what lasted from where to where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from llm_perf_opt.core.report import Span, SpanChart
from llm_perf_opt.formats.charts.axes import (
    AXIS_HEIGHT,
    SIZE,
    Scale,
    axis_name,
    bottom_axis,
    log_range,
    range_around,
    shortened_label,
)
from llm_perf_opt.formats.charts.picture import Hues, Picture, hued, nothing_to_draw
from llm_perf_opt.formats.svg_style import escaped, rectangle, text
from llm_perf_opt.formats.visible_text import cell_text, exact_text, text_width, visible

_MOST_SPANS = 400
_ROW, _ROW_GAP, _LANE_GAP = 20.0, 3.0, 8.0
_LABEL_LINE = 18.0
_WIDEST_LABELS = 0.3
_THINNEST = 2.0
_NAME_LINE = 18.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A span on the screen, its words beside or on it, and how far both reach."""

    span: Span
    left: float
    right: float
    words: str
    words_at: float  # left end of the words
    is_inside: bool

    @property
    def reach(self) -> float:
        return max(self.right, self.words_at + text_width(self.words, SIZE)) if self.words else self.right

    @property
    def begin(self) -> float:
        return min(self.left, self.words_at) if self.words else self.left


def span_picture(chart: SpanChart, hues: Hues, width: float) -> Picture:
    """One lane under the other; spans of a lane that would cover each other lie in rows of their own."""
    spans = chart.spans[:_MOST_SPANS]
    ends = list(chain.from_iterable((span.start, span.end) for span in spans))
    if not ends or (chart.axis.is_log and max(ends) <= 0):
        return nothing_to_draw(width)
    lanes = dict.fromkeys(span.lane for span in spans)
    room = max(text_width(visible(lane), SIZE) for lane in lanes) + 10
    is_beside = room <= width * _WIDEST_LABELS
    shown = log_range(ends) if chart.axis.is_log else range_around(ends, is_padded=False)
    scale = Scale(shown, room if is_beside else 1.0, width - 8)
    hue_of = dict(zip([*lanes], hues.of([*lanes]), strict=True))
    parts, y = [], 4.0
    for lane in lanes:
        pieces = [_piece(chart, span, scale, width) for span in spans if span.lane == lane]
        label, top = _lane_label(lane, scale.start if is_beside else None, y, width)
        elements, y = _lane_rows(chart, pieces, hue_of[lane], top)
        parts += [label, elements]
        y += _LANE_GAP
    axis = bottom_axis(chart.axis.kind, scale, 0, y, width)
    words = shortened_label(visible(axis_name(chart.axis)), width - 8)
    name = text(width - 8, y + 34, words, SIZE, classes="soft name", anchor="end")
    left_out = len(chart.spans) - len(spans)
    remarks = (f"{left_out:,} more spans are in the table only.",) if left_out else ()
    return Picture(axis + "".join(parts) + name, width, y + AXIS_HEIGHT + _NAME_LINE, remarks)


def _lane_label(lane: str, start: float | None, y: float, width: float) -> tuple[str, float]:
    """The name beside the lane, or above it where it is too long; and where the rows of the lane begin."""
    name = visible(lane)
    if start is not None:
        return text(start - 10, y + _ROW / 2 + 4, name, SIZE, classes="label", anchor="end"), y
    label = text(6, y + 12, shortened_label(name, width - 6), SIZE, classes="label")
    return f"<g><title>{escaped(name)}</title>{label}</g>", y + _LABEL_LINE


def _lane_rows(chart: SpanChart, pieces: Sequence[_Piece], hue: int, top: float) -> tuple[str, float]:
    """Elements of a lane and its lower edge."""
    reaches: list[float] = []  # of each row
    parts = []
    for piece in pieces:
        row = next((row for row, reach in enumerate(reaches) if reach + 2 <= piece.begin), len(reaches))
        reaches[row : row + 1] = [piece.reach]
        y = top + row * (_ROW + _ROW_GAP)
        parts.append(hued(hue, _drawn(piece, y), _tooltip(chart, piece.span)))
    return "".join(parts), top + max(1, len(reaches)) * (_ROW + _ROW_GAP)


def _drawn(piece: _Piece, y: float) -> str:
    block = rectangle(piece.left, y, piece.right - piece.left, _ROW, "bar", radius=3)
    classes = "on-bar" if piece.is_inside else "value"
    return block + (text(piece.words_at, y + 14, piece.words, SIZE, classes=classes) if piece.words else "")


def _piece(chart: SpanChart, span: Span, scale: Scale, width: float) -> _Piece:
    """Words stand in the span if they fit, otherwise right or left of it, otherwise in the tooltip alone."""
    left = scale.at(span.start)
    right = max(scale.at(span.end), left + _THINNEST)
    length = cell_text(span.end - span.start, chart.axis.kind)
    name = visible(span.name)
    for words in (length if name == visible(span.lane) else f"{name} {length}", length):
        needed = text_width(words, SIZE)
        if needed + 10 <= right - left:
            return _Piece(span, left, right, words, left + 5, is_inside=True)
        if right + 5 + needed <= width:
            return _Piece(span, left, right, words, right + 5, is_inside=False)
        if left - 5 - needed >= scale.start:
            return _Piece(span, left, right, words, left - 5 - needed, is_inside=False)
    return _Piece(span, left, right, "", left, is_inside=False)


def _tooltip(chart: SpanChart, span: Span) -> str:
    kind = chart.axis.kind
    name = span.name if span.name == span.lane else f"{span.lane}, {span.name}"
    start, end, length = (exact_text(value, kind) for value in (span.start, span.end, span.end - span.start))
    return f"{name}: {length}, from {start} to {end}"
