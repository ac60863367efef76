"""Plans side by side as tables: the best first, and why others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.report import BarChart, Cell, Chart, Column, Kind, Note, Series, Table, table_of
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.serving.ranks.plan_figures import PlanFigures, PlanTime

PLANS_TABLE = "Plans"
REFUSED_TABLE = "Plans that are refused, and why"


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
