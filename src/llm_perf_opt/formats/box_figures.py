"""What a drawing says about one box: the figure it weighs by, loops, costs, and every fact there is."""

from __future__ import annotations

import json

from llm_perf_opt.core import units
from llm_perf_opt.core.graph_view import (
    Box,
    CollectiveGroup,
    Figures,
    GraphView,
    Metric,
    TensorGroup,
    inclusive,
    metric_named,
    own,
    share,
    total,
)


class WeighedDrawing:
    """A drawing that prints one figure and shares it out."""

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)


UNKNOWN = "?"
AT_LEAST = ">= "  # before a figure with ops in it that have no price


def metric_text(value: int | None, metric: Metric) -> str:
    """`1.14 TFLOP`, `6.21 GiB`, `3.34 G params`, `24 calls`; `?` in place of an unknown number."""
    if metric is Metric.FLOPS:
        return f"{UNKNOWN} FLOP" if value is None else units.format_flops(value)
    if metric in (Metric.BYTES, Metric.ACTIVATIONS):
        return f"{UNKNOWN} B" if value is None else units.format_bytes(value)
    if metric is Metric.PARAMETERS:
        return f"{UNKNOWN if value is None else units.format_short_count(value)} params"
    return "1 call" if value == 1 else f"{UNKNOWN if value is None else units.format_count(value)} calls"


def inclusive_text(box: Box, metric: Metric) -> str:
    """The figure of a box with everything inside it."""
    return bound_text(inclusive(box, metric), metric, box.figures)


def own_text(box: Box, metric: Metric) -> str:
    """The figure of a box without the boxes inside."""
    return bound_text(own(box, metric), metric, box.own)


def bound_text(value: int | None, metric: Metric, figures: Figures) -> str:
    """As `metric_text`, and `>= 1.14 TFLOP` where ops behind `figures` have no price."""
    return at_least(value, metric, figures) + metric_text(value, metric)


def at_least(value: int | None, metric: Metric, figures: Figures) -> str:
    """The sign of a lower bound, or nothing; parameters and calls are always exact."""
    is_bound = value is not None and bool(figures.unpriced_ops) and metric in (Metric.FLOPS, Metric.BYTES)
    return AT_LEAST if is_bound else ""


def share_text(fraction: float | None) -> str:
    """`27 %`, `0.4 %`, `<0.1 %`, `>99 %`; `?` where it is not known."""
    if fraction is None:
        return f"{UNKNOWN} %"
    percent = fraction * 100
    if 99.5 <= percent < 100:
        return ">99 %"
    if percent == 0 or percent >= 9.95:
        return f"{percent:.0f} %"
    return "<0.1 %" if percent < 0.05 else f"{percent:.1f} %"


_MOST_COLLECTIVES = 2  # on a box; a tooltip lists all
_MOST_GROUPS = 4  # distinct shapes that a tooltip lists before it only counts them


def loops_text(box: Box) -> str:
    """`parfor 2, for 24`, or nothing."""
    return ", ".join(loop.text for loop in box.loops)


def collectives_text(box: Box) -> str:
    """`all-reduce 16.0 MiB x 2`: the collectives of one call, the most bytes first; empty if there are none.

    Where the calls of a box differ, how often all of them together do.
    """
    shown = [_collective_text(part, box.calls) for part in box.collectives[:_MOST_COLLECTIVES]]
    more = len(box.collectives) - _MOST_COLLECTIVES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def has_collectives(view: GraphView) -> bool:
    """Whether any box has a collective."""
    return any(root.collectives for root in view.roots)


def collective_facts(box: Box) -> list[tuple[str, str]]:
    """Kind and amount of every collective of the box; numbers exact."""
    return [
        (
            f"{part.kind} between {units.format_count(part.ranks)} ranks",
            f"{units.format_count(part.payload_bytes)} bytes each, {units.format_count(part.count)} in all calls",
        )
        for part in box.collectives
    ]


def _collective_text(part: CollectiveGroup, calls: int) -> str:
    each, left = divmod(part.count, calls) if calls else (0, part.count)
    times = f" x {units.format_count(part.count)} in all" if left else f" x {units.format_count(each)}" * (each > 1)
    return f"{part.kind} {units.format_bytes(part.payload_bytes)}{times}"


def cost_text(box: Box, view: GraphView, metric: Metric) -> str:
    """`1.14 TFLOP, 25 %`: the figure asked for and its share of the whole."""
    fraction = share(inclusive(box, metric), total(view, metric))
    return inclusive_text(box, metric) + ("" if fraction is None else f", {share_text(fraction)}")


def figure_texts(box: Box, metric: Metric, total_cost: int | None) -> list[str]:
    """Instances, calls, FLOPs, bytes moved, activations, parameters, the share of `whole`: columns of a table."""
    columns = (Metric.FLOPS, Metric.BYTES, Metric.ACTIVATIONS, Metric.PARAMETERS)
    sums = (inclusive_text(box, figure) for figure in columns)
    return [
        units.format_count(box.instances),
        units.format_count(box.calls),
        *(text.removesuffix(" params") for text in sums),
        share_text(share(inclusive(box, metric), total_cost)),
    ]


def second_text(box: Box, metric: Metric) -> str:
    """Parameters, or FLOPs where the picture already weighs by parameters."""
    second = Metric.FLOPS if metric is Metric.PARAMETERS else Metric.PARAMETERS
    return inclusive_text(box, second)


def hidden_text(box: Box) -> str:
    """`9 boxes inside` on a box that is drawn closed, or nothing."""
    if box.is_open or not box.children:
        return ""
    count = sum(1 for _ in box.walk()) - 1
    return f"{units.format_count(count)} box{'es' if count > 1 else ''} inside"


def facts_of(box: Box) -> list[tuple[str, str]]:
    """Name and value of everything a viewer's side panel should show; numbers exact."""
    figures = box.figures
    facts = [
        ("class", box.class_name),
        ("path", box.path),
        ("stage", box.stage),
        ("loops", loops_text(box)),
        ("instances", units.format_count(box.instances)),
        ("calls", units.format_count(box.calls)),
        ("calls per instance", " or ".join(map(str, box.calls_per_instance))),
        ("FLOPs", _priced(figures.flops, figures)),
        ("MACs", _priced(figures.macs, figures)),
        ("bytes moved", _priced(figures.bytes_moved, figures)),
        ("parameters", _exact(figures.parameters)),
        ("activation bytes", _exact(figures.activation_bytes)),
        ("ops without a price", _exact(figures.unpriced_ops)),
    ]
    facts += collective_facts(box)
    facts += [(name, json.dumps(value)) for name, value in box.constructor_params.items()]
    facts += [(f"{name} of the layer", json.dumps(value)) for name, value in box.layer_context.items()]
    return [*facts, *_tensor_facts("input", box.inputs), *_tensor_facts("output", box.outputs)]


def _tensor_facts(name: str, groups: tuple[TensorGroup, ...]) -> list[tuple[str, str]]:
    facts = [
        (f"{name} of {units.format_count(group.calls)} call{'s' if group.calls != 1 else ''}", ", ".join(group.tensors))
        for group in groups[:_MOST_GROUPS]
    ]
    left_off = len(groups) - _MOST_GROUPS
    return facts if left_off <= 0 else [*facts, (f"{name}s", f"{left_off} more kinds")]


def _priced(value: int | None, figures: Figures) -> str:
    """A figure of ops that have a price: a lower bound where others ran."""
    return at_least(value, Metric.FLOPS, figures) + _exact(value)


def _exact(value: int | None) -> str:
    return UNKNOWN if value is None else units.format_count(value)
