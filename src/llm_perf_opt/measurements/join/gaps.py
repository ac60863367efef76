"""Where a recorded run took longer than predicted: by stage and family of modules, the largest gap first.

A gap is measured less expected time. What is left between the kernels of a stage is a place of its own: there the
device waited for the host. Each place has the class of its reason, as far as the trace and the rates know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, stage_names, stage_of_calls
from llm_perf_opt.core.module_selection import family_of
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.measurements.join.join_report import Joined, families_of
from llm_perf_opt.measurements.join.sides import is_routed
from llm_perf_opt.measurements.join.totals import JoinedTotal
from llm_perf_opt.timing.lower_bound import BoundBy

_NS_PER_S = 10**9


class GapReason(StrEnum):
    """What a gap is about."""

    LAUNCHES = "kernel launches"
    MEMORY = "memory-bound"
    COMPUTE = "matmuls below the expected rate"
    ATTENTION = "attention"
    EXPERTS = "experts"
    HOST = "Python and the dispatch of torch"


_OF_LIMIT: Mapping[BoundBy, GapReason] = {
    BoundBy.COMPUTE: GapReason.COMPUTE,
    BoundBy.BANDWIDTH: GapReason.MEMORY,
    BoundBy.LAUNCHES: GapReason.LAUNCHES,
    BoundBy.KERNEL_STARTS: GapReason.LAUNCHES,
}

_OF_FAMILY = {"attention": GapReason.ATTENTION, "experts": GapReason.EXPERTS, "router": GapReason.EXPERTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One place of one forward. `expected_s` None: nothing is predicted of it; `reason` None: nothing says."""

    stage: str
    place: str  # modules of one family, or what is between the kernels of a stage
    kernels: int
    measured_s: float
    expected_s: float | None
    reason: GapReason | None

    @property
    def gap_s(self) -> float | None:
        """How much longer than expected."""
        return None if self.expected_s is None else self.measured_s - self.expected_s


def module_gaps(joined: Joined) -> Iterator[Gap]:
    """Every family of modules with the time of its own kernels, per forward."""
    graph, forwards = joined.graph, max(1, joined.joined.forwards)
    stages = _stages_of_modules(graph)
    by_stage: dict[str, list[JoinedTotal]] = {}
    for module in joined.totals.modules:
        by_stage.setdefault(stages.get(module.name, graph.phase), []).append(module)
    for stage, modules in by_stage.items():
        for path, row in families_of(graph, modules).items():
            yield Gap(
                stage=stage,
                place=row.name or "(root)",
                kernels=row.kernels // forwards,
                measured_s=row.device_ns / _NS_PER_S / forwards,
                expected_s=None if row.predicted is None else centre(row.predicted) / forwards,
                reason=_reason(row, path, graph),
            )


def _stages_of_modules(graph: CallGraph) -> dict[str, str]:
    names, stages, calls = stage_names(graph), stage_of_calls(graph), calls_of(graph)
    return {graph.paths[row]: names[stages[call]] for call, row in enumerate(calls.path)}


def _reason(row: JoinedTotal, path: str, graph: CallGraph) -> GapReason | None:
    if is_routed(path):
        return GapReason.EXPERTS
    family = family_of(graph.module_types.get(path, ""))
    if family in _OF_FAMILY:
        return _OF_FAMILY[family]
    return None if row.bound_by is None else _OF_LIMIT.get(row.bound_by)


def largest_first(gaps: list[Gap]) -> list[Gap]:
    """By gap, what nothing is predicted of by its whole time."""
    return sorted(gaps, key=lambda gap: (-(gap.measured_s if gap.gap_s is None else gap.gap_s), gap.stage, gap.place))
