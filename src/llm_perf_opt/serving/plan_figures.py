"""One parallel plan on one cluster: whether it fits, how long a step takes over all its stages, and which is best.

The stages of a pipeline run one after the other for each sequence. Split into parts, a prefill can keep all of them
busy, so its band begins at the slowest stage; a decode step has nothing to split but its batch, and each part of it
reads all weights again, so its band begins at the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Note, Series, Table, table_of
from llm_perf_opt.core.units import format_bytes, format_seconds
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.serving.rank_figures import RankFigures, RankTime, room_left

PLANS_TABLE = "Plans"
REFUSED_TABLE = "Plans that are refused, and why"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTime:
    """A phase over all stages. `communication_share` is what nothing hides, at the high edge; None is unknown."""

    lower_bound_s: float | None
    low_s: float
    high_s: float
    communication_share: float | None
    expected_s: float | None = None  # None: the source of the times gives ends alone

    @property
    def likely_s(self) -> float:
        """What is expected, or as far, by factors, from one end of the band as from the other."""
        return math.sqrt(self.low_s * self.high_s) if self.expected_s is None else self.expected_s

    @property
    def text(self) -> str:
        """`24.4 ms (20.1 to 29.0 ms)`, or the ends alone."""
        ends = f"{format_seconds(self.low_s)} to {format_seconds(self.high_s)}"
        return ends if self.expected_s is None else f"{format_seconds(self.expected_s)} ({ends})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """A plan that runs. Bytes are those of the rank that has the most, or the least left; None is unknown.

    `batch` are the sequences of each rank: `dp` and `fsdp` share the whole batch. `tokens_per_s_per_device` is of
    decode steps as expected, or in the middle of their band, one batch in flight.
    """

    plan: ParallelPlan
    batch: int
    fits: bool | None
    memory_left_bytes: int | None
    memory_bytes: int  # that a rank may use
    weight_bytes: int
    replicated_bytes: int | None
    cache_bytes: int | None
    prefill: PlanTime | None
    decode: PlanTime | None
    tokens_per_s_per_device: float | None
    kinds: tuple[RankFigures, ...]

    @property
    def needed_bytes(self) -> int | None:
        """What the fullest rank would have to hold."""
        return None if self.memory_left_bytes is None else self.memory_bytes - self.memory_left_bytes

    @property
    def name(self) -> str:
        """As people write it."""
        return self.plan.describe()


def plan_figures(plan: ParallelPlan, kinds: Sequence[RankFigures], cluster: Cluster, batch: int) -> PlanFigures:
    """The figures of a plan from those of each kind of its ranks; `batch` are the sequences of one rank."""
    times = {name: _over_stages(plan, kinds, name) for name in dict.fromkeys(_phases(kinds))}
    prefill = next((time for name, time in times.items() if name != DECODE), None)
    decode = times.get(DECODE)
    lefts, memory_bytes = [_left(kind, cluster) for kind in kinds], _usable(kinds, cluster)
    known = [left for left in lefts if left is not None]
    left = min(known) if len(known) == len(lefts) else None
    whole = batch * plan.dp * plan.fsdp
    caches = [phase.cache_bytes for kind in kinds for phase in kind.phases if phase.cache_bytes is not None]
    return PlanFigures(
        plan=plan,
        batch=batch,
        fits=None if left is None else left >= 0,
        memory_left_bytes=left,
        memory_bytes=memory_bytes,
        weight_bytes=max(kind.weight_bytes for kind in kinds),
        replicated_bytes=kinds[0].replicated_bytes,
        cache_bytes=max(caches, default=None),
        prefill=prefill,
        decode=decode,
        tokens_per_s_per_device=None if decode is None else whole / decode.likely_s / cluster.count,
        kinds=tuple(kinds),
    )


def _phases(kinds: Sequence[RankFigures]) -> Iterator[str]:
    return (phase.phase for phase in kinds[0].phases)


def _usable(kinds: Sequence[RankFigures], cluster: Cluster) -> int:
    budgets = [kind.serving.budget_bytes for kind in kinds if kind.serving is not None]
    return min(budgets, default=cluster.device.memory_bytes)


def _left(kind: RankFigures, cluster: Cluster) -> int | None:
    """As a serving engine uses the memory; where nothing is decoded, as the code as written needs it."""
    if kind.serving is not None:
        return room_left(kind)
    needs = [phase.needed_bytes for phase in kind.phases]
    known = [need for need in needs if need is not None]
    return cluster.device.memory_bytes - max(known) if known and len(known) == len(needs) else None


def _over_stages(plan: ParallelPlan, kinds: Sequence[RankFigures], phase: str) -> PlanTime | None:
    """The phase over all pipeline stages; without a pipeline that of the slowest kind of rank."""
    found = [(kind, one.time) for kind in kinds for one in kind.phases if one.phase == phase]
    times = [(_stages(plan, kind), time) for kind, time in found if time is not None]
    if not times or len(times) < len(found):
        return None
    if plan.pp == 1:
        return _of_slowest([time for _, time in times])
    longest = max(time.low_s for _, time in times)
    low = sum(count * time.low_s for count, time in times)
    high = sum(count * time.high_s for count, time in times)
    exposed = [None if time.exposed is None else count * time.exposed.high for count, time in times]
    return PlanTime(
        lower_bound_s=_pipeline_bound(times),
        low_s=low if phase == DECODE else longest,
        high_s=high,
        expected_s=_expected(times),
        communication_share=None if None in exposed or not high else sum(one or 0.0 for one in exposed) / high,
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
        communication_share=slowest.exposed_share,
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


def ranked(plans: Sequence[PlanFigures]) -> tuple[PlanFigures, ...]:
    """Those that fit first; by the decode step, or the prefill without one; then by memory left."""
    return tuple(sorted(plans, key=_order))


def _order(plan: PlanFigures) -> tuple[bool, float, int]:
    time = plan.decode or plan.prefill
    return plan.fits is False, math.inf if time is None else time.likely_s, -(plan.memory_left_bytes or 0)


def plans_of(devices: int, *, with_experts: bool) -> tuple[ParallelPlan, ...]:
    """Every plan of so many devices, the simplest first: few kinds of parallelism, much tensor parallelism."""
    found = [
        ParallelPlan(tp=tp, pp=pp, fsdp=fsdp, dp=dp, ep=ep)
        for tp, pp, fsdp, dp in _products(devices, 4)
        for ep in (_divisors(tp * fsdp) if with_experts else (1,))
    ]
    return tuple(sorted(found, key=lambda plan: (len(plan.sizes()), -plan.tp, -plan.ep, -plan.dp, -plan.pp)))


def _products(count: int, factors: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a product of so many, in order."""
    if factors == 1:
        yield (count,)
        return
    for first in _divisors(count):
        yield from ((first, *rest) for rest in _products(count // first, factors - 1))


def _divisors(count: int) -> tuple[int, ...]:
    return tuple(number for number in range(1, count + 1) if count % number == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlans:
    """Plans that cannot be used, all for one reason."""

    plans: tuple[str, ...]
    reason: str


def plans_table(plans: Sequence[PlanFigures]) -> Table:
    """One row per plan that runs, as ranked."""
    return table_of(
        PLANS_TABLE,
        plans,
        {
            Column("plan"): lambda plan: plan.name,
            Column("serves"): lambda plan: None if plan.fits is None else "yes" if plan.fits else "no",
            Column("memory left", Kind.BYTES): lambda plan: plan.memory_left_bytes,
            Column("weights", Kind.BYTES): lambda plan: plan.weight_bytes,
            Column("KV cache", Kind.BYTES): lambda plan: plan.cache_bytes,
            Column("batch of a rank", Kind.COUNT): lambda plan: plan.batch,
            **_time_columns("step", plans, lambda plan: plan.decode),
            **_time_columns("prefill", plans, lambda plan: plan.prefill),
            Column("tokens/s per device", Kind.COUNT): lambda plan: _rounded(plan.tokens_per_s_per_device),
        },
    )


_PlanCell = Callable[[PlanFigures], Cell]


def _time_columns(
    name: str, plans: Sequence[PlanFigures], time_of: Callable[[PlanFigures], PlanTime | None]
) -> dict[Column, _PlanCell]:
    def cell(figure: Callable[[PlanTime], Cell]) -> _PlanCell:
        return lambda plan: None if (time := time_of(plan)) is None else figure(time)

    is_expected = any(time.expected_s is not None for plan in plans if (time := time_of(plan)) is not None)
    expected = {Column(name, Kind.SECONDS): cell(lambda time: time.expected_s)} if is_expected else {}
    return {
        Column(f"{name} bound", Kind.SECONDS): cell(lambda time: time.lower_bound_s),
        **expected,
        Column(f"{name} low", Kind.SECONDS): cell(lambda time: time.low_s),
        Column(f"{name} high", Kind.SECONDS): cell(lambda time: time.high_s),
        Column(f"{name} communication", Kind.RATIO): cell(lambda time: time.communication_share),
    }


def _rounded(figure: float | None) -> int | None:
    return None if figure is None else round(figure)


def refused_table(refused: Sequence[RefusedPlans]) -> Table:
    """One row per reason."""
    rows = tuple((", ".join(one.plans), one.reason) for one in refused)
    return Table(title=REFUSED_TABLE, columns=(Column("plans"), Column("reason")), rows=rows)


def too_large(plans: Sequence[PlanFigures]) -> Iterator[RefusedPlans]:
    """Plans that run and do not fit, with what they need and what there is."""
    for plan in plans:
        if plan.fits is False and plan.needed_bytes is not None:
            needed, usable = format_bytes(plan.needed_bytes), format_bytes(plan.memory_bytes)
            yield RefusedPlans(plans=(plan.name,), reason=f"needs {needed} per rank, has {usable}")


def best_table(best: PlanFigures, cluster: Cluster) -> Table:
    """The answer, in one row."""
    time, what = (best.decode, "decode step") if best.decode is not None else (best.prefill, "prefill")
    cells: dict[Column, Cell] = {
        Column("plan"): best.name,
        Column(what): None if time is None else time.text,
        Column("of it communication, at most", Kind.RATIO): None if time is None else time.communication_share,
        Column("memory left on a rank", Kind.BYTES): best.memory_left_bytes,
        Column("tokens/s per device", Kind.COUNT): _rounded(best.tokens_per_s_per_device),
    }
    return Table(title=f"Best plan for {cluster}", columns=tuple(cells), rows=(tuple(cells.values()),))


def plans_chart(plans: Sequence[PlanFigures], most: int = 24) -> tuple[Chart, ...]:
    """Bound and band of the decode step of the first plans."""
    shown = [plan for plan in plans if plan.decode is not None][:most]
    if not shown:
        return ()
    times = [plan.decode for plan in shown if plan.decode is not None]
    return (
        BarChart(
            title="Decode step by plan",
            categories=tuple(plan.name for plan in shown),
            series=(
                Series("lower bound", tuple(time.lower_bound_s for time in times)),
                Series("low", tuple(time.low_s for time in times)),
                Series("high", tuple(time.high_s for time in times)),
            ),
            kind=Kind.SECONDS,
            caption="In the order of the table: plans that fit first.",
        ),
    )


def plan_notes(plans: Sequence[PlanFigures], batch: int, *, left_out: int) -> Iterator[Note]:
    """How plans are ranked, and what the columns mean; of the latter nothing where no plan runs."""
    sequences = "one sequence" if batch == 1 else f"{batch:,} sequences"
    shared = f"The batch is {sequences} in all, shared by the replicas of dp and the ranks of fsdp."
    if plans:
        yield Note(
            "Ranked: plans that fit first, by the decode step as expected or in the middle of its band, then by memory "
            "left. Bytes are of the fullest rank; memory left is what an engine has free beside weights, working "
            "memory and cache."
        )
        shared += (
            " Communication is the share of the high edge that nothing hides if none of it overlaps; the low edge "
            "overlaps all of it."
        )
    yield Note(shared)
    if any(plan.plan.pp > 1 for plan in plans):
        yield Note(
            "With pp one batch is in flight: a decode step passes every stage in turn while the others wait. Several "
            "batches in flight give up to pp times the tokens/s, with the cache of each of them."
        )
    if any(plan.plan.fsdp > 1 for plan in plans):
        yield Note("With fsdp every rank gathers the weights of a layer before it runs, at every step.")
    if left_out:
        yield Note(f"{left_out:,} plans with more kinds of parallelism were not tried: raise --max-plans.")
