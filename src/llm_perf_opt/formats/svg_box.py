"""What is written on a box, and how much room that takes."""

from __future__ import annotations

from collections.abc import Iterator

from llm_perf_opt.core import units
from llm_perf_opt.core.graph_metric import Metric, inclusive, share, total
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.formats.box_figures import collectives_text, facts_of, hidden_text, inclusive_text, share_text
from llm_perf_opt.formats.box_layout import Placed, Size, is_opened
from llm_perf_opt.formats.svg_style import (
    CLASS_SIZE,
    TEXT_SIZE,
    badge,
    badge_width,
    card_edges,
    escaped,
    rectangle,
    stage_colours,
    text,
    tint_class,
)
from llm_perf_opt.formats.visible_text import ELLIPSIS, fitted, text_width, visible

_INSET = 8.0
_LINE = 14.5
_FIRST_LINE = 23.0  # baseline of the first line
_BADGE_GAP = 5.0
_BAR_HEIGHT = 3.0
_CARDS = (6.0, 3.0)  # how far the cards behind a family stick out
_NARROWEST, _WIDEST_CLASS, _WIDEST_TEXT = 96.0, 300.0, 300.0


class BoxPainter:
    """Measures and draws the boxes of one view."""

    def __init__(self, view: GraphView, metric: Metric) -> None:
        self._metric = metric
        self._total = total(view, metric)
        self._stage_number = {stage: number for number, stage in enumerate(stage_colours(view))}
        self._short_path = dict(pair for root in view.roots for pair in _short_paths(root, None))

    def measure(self, box: Box) -> Size:
        """The whole of a closed box, or the heading of an open one."""
        badges = self._badges_width(box)
        if is_opened(box):
            path = min(text_width(f"@ {self._short_path[box.id]}", TEXT_SIZE), _WIDEST_TEXT)
            figures = text_width(" \u00b7 ".join(self._figure_texts(box)), TEXT_SIZE)
            return Size(2 * _INSET + max(self._class_width(box) + path + badges, figures), _FIRST_LINE + _LINE + 14)
        lines = self._leaf_lines(box)
        widest = max(min(text_width(line, TEXT_SIZE), _WIDEST_TEXT) for line in lines)
        width = max(_NARROWEST, self._class_width(box) + badges, widest)
        return Size(2 * _INSET + width, _FIRST_LINE + _LINE * len(lines) + 13)

    def draw(self, placed: Placed, depth: int) -> str:
        """The box without what is inside it; the tooltip has every fact, nothing shortened."""
        box = placed.box
        stage = self._stage_number[box.stage]
        parts = [f"<title>{_tooltip(box)}</title>"]
        if box.loops:  # sheets behind a box that stands for several uses
            parts += [card_edges(placed.width, placed.height, offset, f"card line-{stage}") for offset in _CARDS]
        kind = f"group {tint_class(stage, depth)}" if is_opened(box) else "leaf"
        parts.append(rectangle(0, 0, placed.width, placed.height, f"{kind} line-{stage}"))
        parts += self._heading(placed) if is_opened(box) else self._leaf(placed)
        parts += self._badges(placed)
        return "".join(parts)

    def _heading(self, placed: Placed) -> Iterator[str]:
        box = placed.box
        name = self._class_text(box)
        yield text(_INSET, _FIRST_LINE, name, CLASS_SIZE, bold=True)
        start = _INSET + self._class_width(box)
        room = placed.width - _INSET - start - self._badges_width(box)
        path = f"@ {visible(box.path) or '(root)'}"
        if text_width(path[:400], TEXT_SIZE) > room:
            path = fitted(f"@ {self._short_path[box.id]}", TEXT_SIZE, room)
        yield text(start, _FIRST_LINE, path, TEXT_SIZE, classes="soft")
        figures = fitted(" \u00b7 ".join(self._figure_texts(box)), TEXT_SIZE, placed.width - 2 * _INSET, keep=0)
        yield text(_INSET, _FIRST_LINE + _LINE, figures, TEXT_SIZE)
        yield from self._bar(placed, _FIRST_LINE + _LINE + 5, text_width(figures, TEXT_SIZE))

    def _leaf(self, placed: Placed) -> Iterator[str]:
        yield text(_INSET, _FIRST_LINE, self._class_text(placed.box), CLASS_SIZE, bold=True)
        room = placed.width - 2 * _INSET
        for number, line in enumerate(self._leaf_lines(placed.box), start=1):
            classes = "soft" if number == 1 else ""
            yield text(_INSET, _FIRST_LINE + number * _LINE, fitted(line, TEXT_SIZE, room), TEXT_SIZE, classes=classes)
        yield from self._bar(placed, placed.height - 7, room)

    def _bar(self, placed: Placed, y: float, width: float) -> Iterator[str]:
        """The share of the whole, as a length."""
        part = share(inclusive(placed.box, self._metric), self._total)
        if part is None:
            return
        yield rectangle(_INSET, y, width, _BAR_HEIGHT, "track", radius=1.5)
        if part * width >= 0.5:
            stage = self._stage_number[placed.box.stage]
            yield rectangle(_INSET, y, part * width, _BAR_HEIGHT, f"fill-{stage}", radius=1.5)

    def _badges(self, placed: Placed) -> Iterator[str]:
        x = placed.width - _INSET
        for loop in reversed(placed.box.loops):
            x -= badge_width(loop)
            yield badge(x, _FIRST_LINE - 12, loop)
            x -= _BADGE_GAP

    def _badges_width(self, box: Box) -> float:
        return sum(badge_width(loop) + _BADGE_GAP for loop in box.loops) + (_BADGE_GAP if box.loops else 0)

    def _class_text(self, box: Box) -> str:
        return fitted(visible(box.class_name), CLASS_SIZE, _WIDEST_CLASS, bold=True)

    def _class_width(self, box: Box) -> float:
        return text_width(self._class_text(box), CLASS_SIZE, bold=True) + (6 if is_opened(box) else 0)

    def _leaf_lines(self, box: Box) -> list[str]:
        cost, part, second, *_ = self._figure_texts(box)
        place = _modules(box) if box.is_left_out else f"@ {self._short_path[box.id]}"
        further = (self._collectives_line(box), hidden_text(box))
        return [place, f"{cost} \u00b7 {part}", second, *(line for line in further if line)]

    def _figure_texts(self, box: Box) -> list[str]:
        second = Metric.FLOPS if self._metric is Metric.PARAMETERS else Metric.PARAMETERS
        return [
            inclusive_text(box, self._metric),
            share_text(share(inclusive(box, self._metric), self._total)),
            inclusive_text(box, second),
            _uses(box),
            *([self._collectives_line(box)] if box.collectives else []),
        ]

    def _collectives_line(self, box: Box) -> str:
        return collectives_text(box).replace(" x ", " \u00d7 ")


def _uses(box: Box) -> str:
    """`12 x 2 calls`: instances and calls of each, two numbers that are never multiplied."""
    calls = " or ".join(map(str, box.calls_per_instance))
    each = f"{calls} call{'' if calls == '1' else 's'}"
    return each if box.instances == 1 else f"{units.format_count(box.instances)} \u00d7 {each}"


def _modules(box: Box) -> str:
    """`3 modules of clip`: what stands on a box of modules left out in place of a path."""
    return visible(box.label.partition(": ")[2])


def _short_paths(box: Box, outer: str | None) -> Iterator[tuple[str, str]]:
    """Box id -> its path, without what the box around it shows already."""
    yield box.id, visible(_short_path(box.path, outer)) or "(root)"
    for child in box.children if is_opened(box) else ():
        yield from _short_paths(child, box.path)


def _short_path(path: str, outer: str | None) -> str:
    """`.attn` inside its block; `\u2026blocks.[0,2]` where the box around is another part of `blocks`."""
    if not outer:
        return path
    if path.startswith(f"{outer}."):
        return path[len(outer) :]
    parts, outer_parts = path.split("."), outer.split(".")
    shared = next((n for n, (a, b) in enumerate(zip(parts, outer_parts, strict=False)) if a != b), len(outer_parts))
    return path if shared < 2 else ELLIPSIS + ".".join(parts[shared - 1 :])


def _tooltip(box: Box) -> str:
    lines = [box.label, *(f"{name}: {value}" for name, value in facts_of(box) if value)]
    return "\n".join(map(escaped, lines))
