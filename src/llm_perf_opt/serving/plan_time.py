"""How long a phase of a parallel plan takes over all its stages.

The stages of a pipeline run one after the other for each sequence. Split into parts, a prefill can keep all of them
busy, so its band begins at the slowest stage; a decode step has nothing to split but its batch, and each part of it
reads all weights again, so its band begins at the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.serving.rank_figures import RankFigures, RankTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTime:
    """A phase over all stages; None is unknown."""

    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None  # None: the source of the times gives low and high alone


def plan_times(plan: ParallelPlan, kinds: Sequence[RankFigures]) -> dict[str, PlanTime | None]:
    """Phase -> its time, from the times of each kind of the plan's ranks."""
    return {phase.phase: _over_stages(plan, kinds, phase.phase) for phase in kinds[0].phases}


def _over_stages(plan: ParallelPlan, kinds: Sequence[RankFigures], phase: str) -> PlanTime | None:
    """The phase over all pipeline stages; without a pipeline the time of the slowest kind of rank."""
    stage_times = [(kind, figures.time) for kind in kinds for figures in kind.phases if figures.phase == phase]
    times = [(_stages(plan, kind), time) for kind, time in stage_times if time is not None]
    if not times or len(times) < len(stage_times):
        return None
    if plan.pp == 1:
        return _of_slowest([time for _, time in times])
    longest = max(time.low_s for _, time in times)
    low = sum(count * time.low_s for count, time in times)
    high = sum(count * time.high_s for count, time in times)
    return PlanTime(
        lower_bound_s=_pipeline_bound(times),
        low_s=low if phase == DECODE else longest,
        high_s=high,
        expected_s=_expected(times),
    )


def _stages(plan: ParallelPlan, kind: RankFigures) -> int:
    return kind.ranks // (plan.tp * plan.fsdp * plan.dp)


def _of_slowest(times: Sequence[RankTime]) -> PlanTime:
    slowest = max(times, key=lambda time: time.high_s)
    bounds = [time.lower_bound_s for time in times]
    return PlanTime(
        lower_bound_s=None if None in bounds else max(bound or 0.0 for bound in bounds),
        low_s=max(time.low_s for time in times),
        high_s=slowest.high_s,
        expected_s=slowest.expected_s,
    )


def _expected(times: Sequence[tuple[int, RankTime]]) -> float | None:
    """Stage after stage."""
    known = [count * time.expected_s for count, time in times if time.expected_s is not None]
    return sum(known) if len(known) == len(times) else None


def _pipeline_bound(times: Sequence[tuple[int, RankTime]]) -> float | None:
    """The slowest stage, or all weights read stage after stage, as the first part of any batch has to."""
    bounds = [time.lower_bound_s for _, time in times]
    reads = [None if time.weights_s is None else count * time.weights_s for count, time in times]
    if None in bounds:
        return None
    slowest = max(bound or 0.0 for bound in bounds)
    return slowest if None in reads else max(slowest, sum(read or 0.0 for read in reads))
