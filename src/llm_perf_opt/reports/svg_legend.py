"""What stands above the picture: title, caption, the stages with their cost, and the signs explained."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.document import Box, GraphView, Loop, LoopKind
from llm_perf_opt.reports.stage_colours import stage_colours
from llm_perf_opt.reports.svg_shapes import badge, badge_width, rectangle, text, wire
from llm_perf_opt.reports.svg_style import TEXT_SIZE, TITLE_SIZE
from llm_perf_opt.reports.text_width import fitted, text_width, wrapped
from llm_perf_opt.reports.view_metric import Metric, at_least, metric_text, own, share, share_text, total
from llm_perf_opt.reports.visible_text import visible

_LINE = 17.0
_ITEM_GAP = 22.0
_WIDEST_STAGE = 180.0
_METRIC_WORDS = {
    Metric.FLOPS: "FLOPs",
    Metric.BYTES: "bytes moved",
    Metric.PARAMETERS: "parameters",
    Metric.CALLS: "calls",
}


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
    for items in (_stage_items(view, metric), _sign_items(metric)):
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
    whole = total(view, metric)
    items = []
    for number, stage in enumerate(stage_colours(view)):
        if stage not in boxes:  # of another phase: it keeps its colour there
            continue
        cost, sign = _own_together(boxes[stage], metric)
        name = fitted(visible(stage), TEXT_SIZE, _WIDEST_STAGE, keep=0) or "(no stage)"
        words = f"{name}: {sign}{metric_text(cost, metric)}, {share_text(share(cost, whole))}"
        items.append(_Item(rectangle(0, -5.5, 11, 11, f"fill-{number}", radius=2), 11, words))
    return items


def _own_together(boxes: list[Box], metric: Metric) -> tuple[int | None, str]:
    """The sum, and the sign of a lower bound; unknown where a part is and the others add nothing."""
    costs = [own(box, metric) for box in boxes]
    known = sum(cost for cost in costs if cost is not None)
    cost = None if None in costs and not known else known
    return cost, next((sign for box in boxes if (sign := at_least(cost, metric, box.own))), "")


def _sign_items(metric: Metric) -> list[_Item]:
    chain = Loop(kind=LoopKind.FOR, count=12)
    free = Loop(kind=LoopKind.PARFOR, count=2)
    bar = rectangle(0, -1.5, 24, 3, "track", radius=1.5) + rectangle(0, -1.5, 9, 3, "head", radius=1.5)
    return [
        _Item(badge(0, -7.5, chain), badge_width(chain), "one feeds the next"),
        _Item(badge(0, -7.5, free), badge_width(free), "independent uses"),
        _Item(wire([(0, 0), (24, 0)]), 24, "a tensor of one is used in the other"),
        _Item(bar, 24, f"share of all {_METRIC_WORDS[metric]}"),
        _Item(
            text(0, 4, "@ .a", TEXT_SIZE, classes="soft"),
            text_width("@ .a", TEXT_SIZE),
            "goes on from the path of the box around",
        ),
    ]
