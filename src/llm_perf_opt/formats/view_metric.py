"""Which figure of a box a drawing weighs by: FLOPs, bytes moved, parameters or calls."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from llm_perf_opt.core import units
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Box, Figures, GraphView

UNKNOWN = "?"
AT_LEAST = ">= "  # before a figure with ops in it that have no price


class Metric(StrEnum):
    """The figures that add up over boxes, so that a share of the whole has a meaning."""

    FLOPS = "flops"
    BYTES = "bytes"
    PARAMETERS = "parameters"
    CALLS = "calls"


def metric_named(name: str) -> Metric:
    """The metric a person asked for; another word is refused with the known ones."""
    if name not in list(Metric):
        raise UsageError(
            f"No metric named {name!r}.",
            why="a drawing weighs by what adds up",
            fix=f"pick one of: {', '.join(Metric)}",
        )
    return Metric(name)


def inclusive(box: Box, metric: Metric) -> int | None:
    """With everything inside the box."""
    return _calls(box.walk()) if metric is Metric.CALLS else _figure(box.figures, metric)


def own(box: Box, metric: Metric) -> int | None:
    """Without the boxes inside."""
    return _calls([box]) if metric is Metric.CALLS else _figure(box.own, metric)


def total(view: GraphView, metric: Metric) -> int | None:
    """Over the whole view."""
    if metric is not Metric.CALLS:
        return _figure(view.totals, metric)
    return _calls(box for root in view.roots for box in root.walk())


def _calls(boxes: Iterable[Box]) -> int:
    """A box parted by cost adds none: its calls are those of its parts."""
    return sum(box.calls for box in boxes if not box.is_split)


def share(part: int | None, whole: int | None) -> float | None:
    """`part` of `whole`, from 0 to 1; unknown where either is, or where there is nothing to share."""
    return None if part is None or not whole else part / whole


def metric_text(value: int | None, metric: Metric) -> str:
    """`1.14 TFLOP`, `6.21 GiB`, `3.34 G params`, `24 calls`; `?` in place of an unknown number."""
    if metric is Metric.FLOPS:
        return f"{UNKNOWN} FLOP" if value is None else units.format_flops(value)
    if metric is Metric.BYTES:
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
    """`27 %`, `0.4 %`, `<0.1 %`; `?` where it is not known."""
    if fraction is None:
        return f"{UNKNOWN} %"
    percent = fraction * 100
    if percent == 0 or percent >= 9.95:
        return f"{percent:.0f} %"
    return "<0.1 %" if percent < 0.05 else f"{percent:.1f} %"


def _figure(figures: Figures, metric: Metric) -> int | None:
    match metric:
        case Metric.FLOPS:
            return figures.flops
        case Metric.BYTES:
            return figures.bytes_moved
        case _:
            return figures.parameters
