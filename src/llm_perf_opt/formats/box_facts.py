"""What drawings say about one box, in words: loops, figures, and everything there is to know, line by line."""

from __future__ import annotations

import json

from llm_perf_opt.core import units
from llm_perf_opt.core.report import Box, Figures, GraphView, TensorGroup
from llm_perf_opt.formats.view_metric import (
    UNKNOWN,
    Metric,
    at_least,
    inclusive,
    inclusive_text,
    share,
    share_text,
    total,
)

_MOST_GROUPS = 4  # distinct shapes that a tooltip lists before it only counts them


def loops_text(box: Box) -> str:
    """`parfor 2, for 24`, or nothing."""
    return ", ".join(loop.text for loop in box.loops)


def cost_text(box: Box, view: GraphView, metric: Metric) -> str:
    """`1.14 TFLOP, 25 %`: the figure asked for and its share of the whole."""
    fraction = share(inclusive(box, metric), total(view, metric))
    return inclusive_text(box, metric) + ("" if fraction is None else f", {share_text(fraction)}")


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
    facts += [(name, json.dumps(value)) for name, value in box.constructor_params.items()]
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
