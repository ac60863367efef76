"""A module with made-up inputs as a model of one phase, and what a source accounts for when its gaps are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import nn

from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import Stage, Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.reconcile import CAUSES

ADDED = {"elementwise-counted", "rounded-up"}  # causes by which a source counts more than the matrix work
PHASE = "forward"


class OneModule:
    """Builds a module and calls it once. Inputs are made inside the run, so they are ghosts where the weights are."""

    title = "a module of a test"

    def __init__(
        self,
        build: Callable[[], nn.Module],
        args: Callable[[], Sequence[Any]] = tuple,
        kwargs: Callable[[], Mapping[str, Any]] = dict,
        stages: tuple[Stage, ...] = (),
    ) -> None:
        self.build, self.args, self.kwargs, self.stages = build, args, kwargs, stages

    def target(self) -> Target:
        return Target(
            model="one module",
            phase=PHASE,
            workload={},
            build=cache(self.build),
            invoke=lambda module: module(*self.args(), **self.kwargs()),
            stages=self.stages,
        )

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        return (self.target(),)


def accounted(figures: SourceFigures) -> int:
    """The figure of a source, plus what it says it left out, less what it says it added."""
    assert figures.failure is None, figures.failure
    assert figures.flops is not None
    total = figures.flops
    for spot in figures.blind_spots:
        assert spot.cause in CAUSES, spot
        assert spot.flops is not None, spot
        total += -spot.flops if spot.cause in ADDED else spot.flops
    return total
