"""The picture as SVG: boxes in boxes, arrows between siblings, costs, a legend above; and the same as PNG.

The layout is our own, so no other program is needed, and the same view gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.graph_view import (
    Box,
    BoxLoop,
    GraphView,
    LoopKind,
    Metric,
    inclusive,
    own,
    share,
    total,
)
from llm_perf_opt.formats.box_figures import (
    WeighedDrawing,
    at_least,
    collectives_text,
    facts_of,
    has_collectives,
    hidden_text,
    inclusive_text,
    metric_text,
    share_text,
)
from llm_perf_opt.formats.box_layout import BoxLayout, Placed, Size, is_opened
from llm_perf_opt.formats.svg_style import (
    CLASS_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    badge,
    badge_width,
    card_edges,
    escaped,
    number,
    rectangle,
    stage_colours,
    style_sheet,
    text,
    tint_class,
    wire,
)
from llm_perf_opt.formats.visible_text import ELLIPSIS, fitted, text_width, visible, wrapped

_LINE = 17.0
_ITEM_GAP = 22.0
_WIDEST_STAGE = 180.0
_COLLECTIVE, _COLLECTIVES = "all-reduce 1 KiB \u00d7 2", "the collectives of one call"


@dataclass(frozen=True, slots=True)
class Heading:
    """Elements, and the height they take."""

    elements: str
    height: float


@dataclass(frozen=True, slots=True)
class _Item:
    """A sign with its explanation; `sign` is drawn with its left middle at the origin."""

    sign: str
    sign_width: float
    words: str

    @property
    def width(self) -> float:
        return self.sign_width + 7 + text_width(self.words, TEXT_SIZE)


def heading(view: GraphView, metric: Metric, x: float, width: float) -> Heading:
    """Title, caption and legend, wrapped to `width`."""
    y = 34.0
    parts = [text(x, y, fitted(visible(view.title), TITLE_SIZE, width, bold=True, keep=0), TITLE_SIZE, bold=True)]
    for line in (piece for caption in view.caption for piece in wrapped(visible(caption), TEXT_SIZE, width)):
        y += _LINE
        parts.append(text(x, y, line, TEXT_SIZE, classes="soft"))
    y += 8
    for items in (_stage_items(view, metric), _sign_items(metric, with_ranks=has_collectives(view))):
        lines, y = _item_lines(items, x, y, width)
        parts += lines
    return Heading("".join(parts), y + 14)


def _item_lines(items: list[_Item], left: float, y: float, width: float) -> tuple[list[str], float]:
    """Items one after the other, on the next line where they do not fit; and the last baseline."""
    parts: list[str] = []
    x = left + width
    for item in items:
        if x + item.width > left + width:
            x, y = left, y + _LINE
        parts.append(f'<g transform="translate({x:.2f} {y - 4:.2f})">{item.sign}</g>')
        parts.append(text(x + item.sign_width + 7, y, item.words, TEXT_SIZE))
        x += item.width + _ITEM_GAP
    return parts, y


def _stage_items(view: GraphView, metric: Metric) -> list[_Item]:
    """A stage costs what its boxes cost by themselves, so that the stages add up to the total."""
    boxes: dict[str, list[Box]] = {}
    for box in (inner for root in view.roots for inner in root.walk()):
        boxes.setdefault(box.stage, []).append(box)
    total_cost = total(view, metric)
    items = []
    for colour, stage in enumerate(stage_colours(view)):
        if stage not in boxes:  # of another phase: it keeps its colour there
            continue
        cost, sign = _own_together(boxes[stage], metric)
        name = fitted(visible(stage), TEXT_SIZE, _WIDEST_STAGE, keep=0) or "(no stage)"
        words = f"{name}: {sign}{metric_text(cost, metric)}, {share_text(share(cost, total_cost))}"
        items.append(_Item(rectangle(0, -5.5, 11, 11, f"fill-{colour}", radius=2), 11, words))
    return items


def _own_together(boxes: list[Box], metric: Metric) -> tuple[int | None, str]:
    """The sum, and the sign of a lower bound; unknown where a part is and the others add nothing."""
    costs = [own(box, metric) for box in boxes]
    known = sum(cost for cost in costs if cost is not None)
    cost = None if None in costs and not known else known
    return cost, next((sign for box in boxes if (sign := at_least(cost, metric, box.own))), "")


def _sign_items(metric: Metric, *, with_ranks: bool) -> list[_Item]:
    chain = BoxLoop(kind=LoopKind.FOR, count=12)
    free = BoxLoop(kind=LoopKind.PARFOR, count=2)
    bar = rectangle(0, -1.5, 24, 3, "track", radius=1.5) + rectangle(0, -1.5, 9, 3, "head", radius=1.5)
    collective = _Item(text(0, 4, _COLLECTIVE, TEXT_SIZE), text_width(_COLLECTIVE, TEXT_SIZE), _COLLECTIVES)
    return [
        _Item(badge(0, -7.5, chain), badge_width(chain), "one feeds the next"),
        _Item(badge(0, -7.5, free), badge_width(free), "independent uses"),
        _Item(wire([(0, 0), (24, 0)]), 24, "a tensor of one is used in the other"),
        _Item(bar, 24, f"share of all {metric.words}"),
        _Item(
            text(0, 4, "@ .a", TEXT_SIZE, classes="soft"),
            text_width("@ .a", TEXT_SIZE),
            "goes on from the path of the box around",
        ),
        *([collective] if with_ranks else []),
    ]


PAGE_WIDTH = 1260.0  # fits a window of 1280 pixels that has a scroll bar
_MARGIN = 20.0
_NARROWEST = 640.0
_ROOT_GAP = 24.0


class SvgDrawing(WeighedDrawing):
    """At most 1260 pixels wide where the boxes allow it; `metric` is the figure that is printed and shared out."""

    suffix = ".svg"

    def render(self, view: GraphView) -> str:
        """One SVG document without scripts and without references to anything outside it."""
        return self._svg(view, f"<style>{style_sheet(stage_colours(view).values())}</style>")

    def embedded(self, view: GraphView, page_width: float) -> str:
        """The same without a style, for a column of a page that has one (`svg_style.scoped_style_sheet`)."""
        return self._svg(view, "", page_width)

    def _svg(self, view: GraphView, style: str, widest: float = PAGE_WIDTH) -> str:
        painter = BoxPainter(view, self._metric)
        layout = BoxLayout(painter.measure)
        roots = [layout.place(root, widest - 2 * _MARGIN) for root in view.roots]
        width = max([_NARROWEST, *(placed.width for placed in roots)])
        top = heading(view, self._metric, _MARGIN, width)
        y, parts = top.height, []
        for placed in roots:
            parts.append(f'<g transform="translate({number(_MARGIN)} {number(y)})">{_drawn(placed, painter, 0)}</g>')
            y += placed.height + _ROOT_GAP
        page_width, page_height = number(width + 2 * _MARGIN), number(y - _ROOT_GAP + _MARGIN + 6)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{page_width}" height="{page_height}" '
            f'viewBox="0 0 {page_width} {page_height}" role="img">'
            f"<title>{escaped(view.title)}</title><desc>{escaped(' '.join(view.caption))}</desc>"
            f'{style}<rect class="page" width="100%" height="100%"/>{top.elements}{"".join(parts)}</svg>\n'
        )


def _drawn(placed: Placed, painter: BoxPainter, depth: int) -> str:
    """The box, the boxes inside it, and over them the arrows between those."""
    parts = [painter.draw(placed, depth)]
    for child in placed.children:
        inner = _drawn(child, painter, depth + 1)
        parts.append(f'<g transform="translate({number(child.x)} {number(child.y)})">{inner}</g>')
    parts += [wire(route) for route in placed.routes]
    return "".join(parts)


SCALE = 1.5  # pixels per unit of the SVG: sharp when zoomed; twice as many would take twice as long

_PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15">{}</text></svg>'


class PngDrawing:
    """Needs the extra `png` and one font on the system."""

    suffix = ".png"

    def __init__(self, metric: str = "flops") -> None:
        self._svg = SvgDrawing(metric)

    def render(self, view: GraphView) -> bytes:
        """The light picture on white."""
        try:
            from resvg_py import svg_to_bytes
        except ImportError as error:
            raise PerfOptError(
                "Cannot draw a PNG.",
                why="the package resvg_py is not installed",
                fix='pip install "llm-perf-opt[png]", or ask for svg, which needs nothing',
            ) from error
        if svg_to_bytes(svg_string=_PROBE.format("M")) == svg_to_bytes(svg_string=_PROBE.format("")):
            raise PerfOptError(
                "Cannot draw a PNG.",
                why="the system has no font, so every label would be missing",
                fix="install one (apt-get install fonts-dejavu-core), or ask for svg",
            )
        return svg_to_bytes(svg_string=self._svg.render(view), background="white", zoom=SCALE)


_INSET = 8.0
_BOX_LINE = 14.5
_FIRST_LINE = 23.0  # baseline of the first line
_BADGE_GAP = 5.0
_BAR_HEIGHT = 3.0
_CARDS = (6.0, 3.0)  # how far the cards behind a family stick out
_NARROWEST_BOX, _WIDEST_CLASS, _WIDEST_TEXT = 96.0, 300.0, 300.0


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
            return Size(2 * _INSET + max(self._class_width(box) + path + badges, figures), _FIRST_LINE + _BOX_LINE + 14)
        lines = self._leaf_lines(box)
        widest = max(min(text_width(line, TEXT_SIZE), _WIDEST_TEXT) for line in lines)
        width = max(_NARROWEST_BOX, self._class_width(box) + badges, widest)
        return Size(2 * _INSET + width, _FIRST_LINE + _BOX_LINE * len(lines) + 13)

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
        yield text(_INSET, _FIRST_LINE + _BOX_LINE, figures, TEXT_SIZE)
        yield from self._bar(placed, _FIRST_LINE + _BOX_LINE + 5, text_width(figures, TEXT_SIZE))

    def _leaf(self, placed: Placed) -> Iterator[str]:
        yield text(_INSET, _FIRST_LINE, self._class_text(placed.box), CLASS_SIZE, bold=True)
        room = placed.width - 2 * _INSET
        for row, line in enumerate(self._leaf_lines(placed.box), start=1):
            y, classes = _FIRST_LINE + row * _BOX_LINE, "soft" if row == 1 else ""
            yield text(_INSET, y, fitted(line, TEXT_SIZE, room), TEXT_SIZE, classes=classes)
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
