"""A chart as an SVG element for a page that has a style for it (`formats/report_page/charts.css`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from llm_perf_opt.core import units
from llm_perf_opt.core.report import BarChart, Chart, Kind, LineChart, Series, Span, SpanChart
from llm_perf_opt.formats.line_svg import line_picture
from llm_perf_opt.formats.picture import (
    AXIS_HEIGHT,
    HUES,
    NARROW,
    SIZE,
    WIDE,
    Hues,
    Key,
    Picture,
    Scale,
    axis_name,
    bottom_axis,
    hued,
    legend,
    log_range,
    nothing_to_draw,
    range_around,
    range_from_zero,
    shortened_label,
    upright,
)
from llm_perf_opt.formats.svg_style import escaped, number, rectangle, text
from llm_perf_opt.formats.visible_text import UNKNOWN, cell_text, exact_text, text_width, visible


@dataclass(frozen=True, slots=True)
class ChartSvg:
    """The chart for a wide page and for a phone, and what it could not draw.

    Two pictures, since one that is made smaller becomes one with letters that are too small.
    """

    wide: str
    narrow: str
    remarks: tuple[str, ...]


def chart_svg(chart: Chart, hues: Hues) -> ChartSvg:
    """The same chart gives the same text."""
    wide, narrow = (_picture(chart, hues, width) for width in (WIDE, NARROW))
    return ChartSvg(_element(chart, wide, "wide"), _element(chart, narrow, "narrow"), wide.remarks)


def _picture(chart: Chart, hues: Hues, width: float) -> Picture:
    match chart:
        case BarChart():
            return bar_picture(chart, hues, width)
        case LineChart():
            return line_picture(chart, hues, width)
        case SpanChart():
            return span_picture(chart, hues, width)


def _element(chart: Chart, picture: Picture, classes: str) -> str:
    size = f"{number(picture.width)} {number(picture.height)}"
    width, height = size.split()
    described = f"<desc>{escaped(chart.caption)}</desc>" if chart.caption else ""
    return (
        f'<svg class="{classes}" viewBox="0 0 {size}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escaped(chart.title)}">{described}{picture.elements}</svg>'
    )


@dataclass(frozen=True, slots=True)
class FewSeries:
    """A chart with the largest parts of the whole, the others as one; and the words that say so."""

    chart: BarChart
    remarks: tuple[str, ...] = ()


def few_series(chart: BarChart) -> FewSeries:
    """Of a stack with more parts than colours the smaller ones are drawn together; a chart of another kind as it is."""
    if not chart.is_stacked or len(chart.series) <= HUES:
        return FewSeries(chart)
    by_size = sorted(chart.series, key=_total, reverse=True)
    large, small = by_size[: HUES - 1], by_size[HUES - 1 :]
    shown = [series for series in chart.series if series in large]
    together = Series(f"{len(small)} others", tuple(map(_sum, zip(*(series.values for series in small), strict=True))))
    remark = f"The {len(small)} smallest series are drawn as one; the table has each of them."
    return FewSeries(replace(chart, series=(*shown, together)), (remark,))


def _total(series: Series) -> float:
    return sum(value for value in series.values if value is not None)


def _sum(values: tuple[int | float | None, ...]) -> int | float | None:
    """Of what is known; that something is not stands behind the bar."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_MOST_CATEGORIES = 60
_LARGE_COUNT = 1e6
_BAR, _BAR_GAP, _GROUP_GAP = 16.0, 2.0, 10.0
_LABEL_LINE = 18.0
_WIDEST_LABELS = 0.36  # of the picture, next to the bars; wider ones are above them
_TIP = 4.0  # half the length of a line across the end of an interval
_THINNEST = 1.5  # pixels, of a bar that is not zero


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar, from `start` to `end`, with what its tooltip says."""

    start: float
    end: float
    hue: int
    tooltip: str


@dataclass(frozen=True, slots=True)
class _Row:
    """Bars on one line and what stands behind them."""

    bars: tuple[_Bar, ...]
    words: str
    interval: tuple[float, float] | None = None


def bar_picture(chart: BarChart, hues: Hues, width: float) -> Picture:
    """Every bar has its figure behind it; what is not known has a question mark in place of a bar."""
    few = few_series(chart)
    groups = _groups(few.chart, hues, _holes(chart))
    if not any(row.words for rows in groups for row in rows):
        return nothing_to_draw(width)
    names = [visible(name) for name in chart.categories[: len(groups)]]
    room = max(text_width(name, SIZE) for name in names) + 10
    is_beside = room <= width * _WIDEST_LABELS
    left = room if is_beside else 0.5
    right = width - max(text_width(row.words, SIZE) for rows in groups for row in rows) - 8
    ends = [place for rows in groups for row in rows for bar in row.bars for place in (bar.start, bar.end)]
    ends += [place for rows in groups for row in rows for place in row.interval or ()]
    scale = Scale(range_from_zero(ends), left, right)
    top = legend(_keys(few.chart, hues), width)
    painter = _Painter(scale, width, is_beside=is_beside)
    y, parts = top.height + 4, []
    for name, rows in zip(names, groups, strict=True):
        elements, height = painter.group(name, rows, y)
        parts.append(elements)
        y += height + _GROUP_GAP
    y -= _GROUP_GAP / 2
    axis = bottom_axis(chart.kind, scale, top.height, y, width) if any(ends) else ""
    zero = upright(scale.at(0), top.height, y, "zero")
    remarks = (*few.remarks, *_left_out(chart))
    return Picture(top.elements + axis + "".join(parts) + zero, width, y + AXIS_HEIGHT, remarks)


@dataclass(frozen=True, slots=True)
class _Painter:
    """Draws groups of bars on one scale."""

    scale: Scale
    width: float
    is_beside: bool

    def group(self, name: str, rows: list[_Row], y: float) -> tuple[str, float]:
        """Elements and height of one category with its upper edge at `y`."""
        height = len(rows) * (_BAR + _BAR_GAP) - _BAR_GAP
        if self.is_beside:
            label = text(self.scale.start - 10, y + height / 2 + 4, name, SIZE, classes="label", anchor="end")
            return label + self._rows(rows, y), height
        label = text(6, y + 12, shortened_label(name, self.width - 6), SIZE, classes="label")
        return f"<g><title>{escaped(name)}</title>{label}</g>" + self._rows(rows, y + _LABEL_LINE), height + _LABEL_LINE

    def _rows(self, rows: list[_Row], y: float) -> str:
        parts = []
        for place, row in enumerate(rows):
            top = y + place * (_BAR + _BAR_GAP)
            parts += [self._bar(bar, top) for bar in row.bars if bar.start != bar.end]
            reach = max([self.scale.at(0), *(self._edges(bar)[1] for bar in row.bars)])
            if row.interval is not None:
                parts.append(self._interval(row.interval, top + _BAR / 2))
                reach = max(reach, self.scale.at(row.interval[1]))
            classes = "value soft" if row.words == UNKNOWN else "value"
            parts.append(text(reach + 6, top + _BAR - 4, row.words, SIZE, classes=classes))
        return "".join(parts)

    def _interval(self, ends: tuple[float, float], y: float) -> str:
        low, high = (number(self.scale.at(end)) for end in ends)
        tips = "".join(f"M{x} {number(y - _TIP)}V{number(y + _TIP)}" for x in (low, high))
        return f'<path class="interval" d="M{low} {number(y)}H{high}{tips}"></path>'

    def _edges(self, bar: _Bar) -> tuple[float, float]:
        left, right = sorted((self.scale.at(bar.start), self.scale.at(bar.end)))
        return left, max(right, left + _THINNEST) if bar.start != bar.end else right

    def _bar(self, bar: _Bar, top: float) -> str:
        left, right = self._edges(bar)
        return hued(bar.hue, rectangle(left, top, right - left, _BAR, "bar", radius=2), bar.tooltip)


def _groups(chart: BarChart, hues: Hues, holes: Sequence[bool]) -> list[list[_Row]]:
    """For each category shown its rows: one in all where bars are stacked, otherwise one for each series.

    `holes` tells the categories of which a part is not known.
    """
    if chart.interval:
        return _with_intervals(chart, hues)
    series_hues = _series_hues(chart, hues)
    own = hues.of(chart.categories) if len(chart.series) == 1 and hues.know(chart.categories) else None
    groups = []
    for place, category in enumerate(chart.categories[:_MOST_CATEGORIES]):
        values = [series.values[place] for series in chart.series]
        colours = series_hues if own is None else [own[place]]
        tooltips = [_tooltip(chart, category, series.name, series.values[place]) for series in chart.series]
        if chart.is_stacked:
            groups.append([_stack(chart, values, colours, tooltips, has_hole=holes[place])])
        else:
            groups.append([_single(chart, *bar) for bar in zip(values, colours, tooltips, strict=True)])
    return groups


def _with_intervals(chart: BarChart, hues: Hues) -> list[list[_Row]]:
    """The bars of all other series, and below them one for the figure that is estimated."""
    others = _without_interval(chart)
    groups = _groups(others, hues, _holes(others)) if others.series else [[] for _ in chart.categories]
    by_name = {series.name: series.values for series in chart.series}
    low, *expected, high = (by_name[name] for name in chart.interval)
    hue = hues.of([*(series.name for series in others.series), _estimated(chart)])[-1]
    for place, rows in enumerate(groups[:_MOST_CATEGORIES]):
        least, most = low[place], high[place]
        value = expected[0][place] if expected else None
        row = _single(chart, value, hue, _tooltip(chart, chart.categories[place], chart.interval[1], value))
        if least is not None and most is not None and (least != most or value is None):
            words = f"{_figure(least, chart.kind)} to {_figure(most, chart.kind)}"
            row = _Row(row.bars, words if value is None else f"{row.words} ({words})", (least, most))
        rows.append(row)
    return groups[:_MOST_CATEGORIES]


def _without_interval(chart: BarChart) -> BarChart:
    others = tuple(series for series in chart.series if series.name not in chart.interval)
    return replace(chart, series=others, interval=())


def _estimated(chart: BarChart) -> str:
    """The key of the figure with an interval."""
    low, *expected, high = chart.interval
    return f"{expected[0]} ({low} to {high})" if expected else f"{low} to {high}"


def _single(chart: BarChart, value: float | None, hue: int, tooltip: str) -> _Row:
    bars = (_Bar(0.0, value, hue, tooltip),) if value is not None else ()
    return _Row(bars, _figure(value, chart.kind))


def _stack(
    chart: BarChart, values: list[int | float | None], hues: list[int], tooltips: list[str], *, has_hole: bool
) -> _Row:
    bars: list[_Bar] = []
    total: int | float = 0
    for value, hue, words in zip(values, hues, tooltips, strict=True):
        if value is not None:
            bars.append(_Bar(total, total + value, hue, words))
            total += value
    if not bars:
        return _Row((), UNKNOWN if values else "")
    return _Row(tuple(bars), _figure(total, chart.kind) + (f" + {UNKNOWN}" if has_hole else ""))


def _figure(value: float | None, kind: Kind) -> str:
    """As in a table, but a large count is short: its digits are in the tooltip."""
    if kind is Kind.COUNT and value is not None and abs(value) >= _LARGE_COUNT:
        return units.format_short_count(value)
    return cell_text(value, kind)


def _holes(chart: BarChart) -> list[bool]:
    return [any(series.values[place] is None for series in chart.series) for place in range(len(chart.categories))]


def _left_out(chart: BarChart) -> tuple[str, ...]:
    count = len(chart.categories) - _MOST_CATEGORIES
    return (f"{count:,} more categories are in the table only.",) if count > 0 else ()


def _keys(chart: BarChart, hues: Hues) -> list[Key]:
    """A single series needs no legend."""
    if chart.interval:
        names = [*(series.name for series in _without_interval(chart).series), _estimated(chart)]
        return [Key(name, hue) for name, hue in zip(names, hues.of(names), strict=True)] if len(names) > 1 else []
    if len(chart.series) < 2:
        return []
    return [Key(series.name, hue) for series, hue in zip(chart.series, _series_hues(chart, hues), strict=True)]


def _series_hues(chart: BarChart, hues: Hues) -> list[int]:
    return hues.of([series.name for series in chart.series])


def _tooltip(chart: BarChart, category: str, series: str, value: float | None) -> str:
    figure = "not known" if value is None else exact_text(value, chart.kind)
    return f"{category}, {series}: {figure}" if series else f"{category}: {figure}"


_MOST_SPANS = 400
_ROW, _ROW_GAP, _LANE_GAP = 20.0, 3.0, 8.0
_WIDEST_LANES = 0.3
_THINNEST_SPAN = 2.0
_NAME_LINE = 18.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A span on the screen, its words next to or on it, and how far both reach."""

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
    is_beside = room <= width * _WIDEST_LANES
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
    """The name next to the lane, or above it where it is too long; and where the rows of the lane begin."""
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
        parts.append(hued(hue, _drawn(piece, y), _span_tooltip(chart, piece.span)))
    return "".join(parts), top + max(1, len(reaches)) * (_ROW + _ROW_GAP)


def _drawn(piece: _Piece, y: float) -> str:
    block = rectangle(piece.left, y, piece.right - piece.left, _ROW, "bar", radius=3)
    classes = "on-bar" if piece.is_inside else "value"
    return block + (text(piece.words_at, y + 14, piece.words, SIZE, classes=classes) if piece.words else "")


def _piece(chart: SpanChart, span: Span, scale: Scale, width: float) -> _Piece:
    """Words stand in the span if they fit, otherwise right or left of it, otherwise in the tooltip alone."""
    left = scale.at(span.start)
    right = max(scale.at(span.end), left + _THINNEST_SPAN)
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


def _span_tooltip(chart: SpanChart, span: Span) -> str:
    kind = chart.axis.kind
    name = span.name if span.name == span.lane else f"{span.lane}, {span.name}"
    start, end, length = (exact_text(value, kind) for value in (span.start, span.end, span.end - span.start))
    return f"{name}: {length}, from {start} to {end}"
