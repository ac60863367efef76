"""What the boxes of a picture are weighed by: figures that add up over boxes, so that a share has a meaning."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import Box, Figures, GraphView


class Metric(StrEnum):
    """A word for `--metric`."""

    FLOPS = "flops"
    BYTES = "bytes"  # moved
    PARAMETERS = "parameters"
    ACTIVATIONS = "activations"  # bytes of memory that ops brought to life
    CALLS = "calls"

    @property
    def words(self) -> str:
        """As a heading says it."""
        return {"flops": "FLOPs", "bytes": "bytes moved", "activations": "activation bytes"}.get(self.value, self.value)


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


def share(part: int | None, whole: int | None) -> float | None:
    """`part` of `whole`, from 0 to 1; unknown where either is, or where there is nothing to share."""
    return None if part is None or not whole else part / whole


def _calls(boxes: Iterable[Box]) -> int:
    """A box parted by cost adds none: its calls are those of its parts."""
    return sum(box.calls for box in boxes if not box.is_split)


def _figure(figures: Figures, metric: Metric) -> int | None:
    match metric:
        case Metric.FLOPS:
            return figures.flops
        case Metric.BYTES:
            return figures.bytes_moved
        case Metric.ACTIVATIONS:
            return figures.activation_bytes
        case _:
            return figures.parameters
