"""Which plan for so many devices: every way to spread a model over them is traced, timed and ranked."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.protocols import KnowsPlans
from llm_perf_opt.core.report import Level, Note, Report, counted, listed, three_digits
from llm_perf_opt.core.units import format_bytes, format_count, format_ratio
from llm_perf_opt.core.work_limits import LimitReached
from llm_perf_opt.costs.memory.need import replicated_notes, spreads_little
from llm_perf_opt.costs.run_description import deployment_notes, workload_note
from llm_perf_opt.serving.plan_figures import (
    PlanFigures,
    RefusedPlans,
    best_table,
    plan_figures,
    plan_notes,
    plans_chart,
    plans_of,
    plans_table,
    ranked,
    refused_table,
    too_large,
)
from llm_perf_opt.serving.rank_figures import rank_kinds
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.origin import Origin, find_origin
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin, trace_ranks

log = logging.getLogger(__name__)

MAX_PLANS = 64


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlansAnswer(Answer):
    """Every plan of the cluster's devices: those that run, the best first, and those that are refused."""

    model: str
    cluster: Cluster
    execution: str
    global_batch: int  # sequences of all devices together
    plans: tuple[PlanFigures, ...]
    refused: tuple[RefusedPlans, ...]
    left_out: int  # plans that were not tried
    _graphs: tuple[CallGraph, ...]  # of the best plan; empty where none runs
    _rates: RateSource

    @property
    def best(self) -> PlanFigures | None:
        """The first plan that fits; None: none does."""
        return next((plan for plan in self.plans if plan.fits is not False), None)

    @property
    def answer(self) -> tuple[str, ...]:
        """The best plan, how many others fit, and what the best one is spent on."""
        best, fitting = self.best, sum(plan.fits is not False for plan in self.plans)
        refused = sum(len(one.plans) for one in self.refused)
        others = f"{counted(fitting, 'plan fits', 'plans fit')}, "
        others += f"{counted(len(self.plans) - fitting, 'does not', 'do not')}, {format_count(refused)} refused."
        if not self.plans:
            first = max(self.refused, key=lambda one: len(one.plans))
            every = f"every plan for {self.cluster} is refused ({format_count(refused)})"
            return f"{self.model}: {every}.", f"{listed(first.plans)}: {first.reason}."
        if best is None:
            return f"{self.model}: no plan fits on {self.cluster}.", others
        time = best.decode or best.prefill
        what = "decode step" if best.decode is not None else "prefill"
        band = "" if time is None else f": {what} {time.text}"
        rate = best.tokens_per_s_per_device
        tokens = "" if rate is None else f", {three_digits(rate)} tokens/s per device"
        share = None if time is None else time.communication_share
        most = "None" if share == 0 else f"At most {format_ratio(share or 0)}"
        shared = "" if share is None else f"{most} of it is communication; "
        left = best.memory_left_bytes
        room = "memory left not known" if left is None else f"{format_bytes(left)} of memory left on a rank"
        if best.plan.is_spread and spreads_little(best.replicated_bytes, best.weight_bytes):
            room += f"; {format_bytes(best.replicated_bytes or 0)} of weights are whole on every rank"
        return f"{self.model} on {self.cluster}, best plan {best.name}{band}{tokens}.", f"{shared}{room}.", others

    def report(self) -> Report:
        """The best plan in words, all plans as ranked, and the reason for each that is refused."""
        refused = (*self.refused, *too_large(self.plans))
        return Report(
            title=f"{self.model}: which plan for {self.cluster}",
            answer=self.answer,
            tables=(
                *((best_table(self.best, self.cluster),) if self.best is not None else ()),
                *((plans_table(self.plans),) if self.plans else ()),
                *((refused_table(refused),) if refused else ()),
            ),
            notes=tuple(self._notes()),
            charts=plans_chart(self.plans),
        )

    def _notes(self) -> Iterator[Note]:
        if self.best is None:
            none = "No plan fits" if self.plans else "No plan runs"
            yield Note(f"{none} on {self.cluster}: the table of refusals says why.", Level.WARNING)
        if self._graphs:
            yield workload_note(self._graphs[:1])
            yield from deployment_notes(self._graphs)
        if self.plans:
            yield from self._rates.notes()
        yield from plan_notes(self.plans, self.global_batch, left_out=self.left_out)
        best = self.best
        if best is not None and best.kinds[0].replicated and self._graphs:
            yield from replicated_notes(self._graphs[0], best.kinds[0].replicated, best.weight_bytes)


def plans(
    model: str | Path,
    devices: str | Cluster,
    *,
    global_batch: int = 1,
    devices_file: Path | None = None,
    execution: str = Execution.FUSED,
    max_plans: int = MAX_PLANS,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> PlansAnswer:
    """Every plan for a cluster, ranked: those that fit by the time of a decode step, then by memory left.

    - `devices`: `8x h100-sxm`, `4x8 h100-sxm`, `72x gb200`; tp x pp x fsdp x dp of a plan is their number.
    - `global_batch`: sequences that run together on all devices, shared by the replicas of dp and the ranks of fsdp.
      `batch`, which `lpo.trace` takes, is what each of them runs.
    - `execution`: who launches kernels, as in `Trace.predict`; an engine by default.
    - `max_plans`: at most so many are traced, those with the fewest kinds of parallelism.
    - `weights`, `cache`, `routing` and the rest of the workload are those of `lpo.trace`.
    """
    if "batch" in workload:
        raise UsageError(
            "Plans take no batch.",
            why="a batch is what one rank runs, and plans divide the sequences of all devices among their ranks",
            fix="give global_batch, --global-batch on the command line: the sequences of all devices together",
        )
    cluster = parse_cluster(devices, devices_file) if isinstance(devices, str) else devices
    origin = find_origin(
        model,
        device=str(cluster),
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=cluster.device.torch_device,
        trust_remote_code=trust_remote_code,
        batch=global_batch,
        copies_key_heads=Execution(execution) is Execution.FUSED,
        **workload,
    )
    rates = source_of(cluster if cluster.count > 1 else cluster.device, execution, rates=None)
    tried = plans_of(cluster.count, with_experts=_has_experts(origin))
    search = _Search(origin, rates, cluster)
    for number, plan in enumerate(tried[:max_plans], 1):
        log.info("Plan %d of %d: %s", number, min(len(tried), max_plans), plan.describe())
        search.add(plan)
    found = ranked(search.found)
    return PlansAnswer(
        model=search.graphs[0].model if search.graphs else origin.model,
        cluster=cluster,
        execution=execution,
        global_batch=global_batch,
        plans=found,
        refused=tuple(RefusedPlans(plans=tuple(names), reason=why) for why, names in search.refused.items()),
        left_out=max(0, len(tried) - max_plans),
        _graphs=search.graphs,
        _rates=rates,
    )


def _has_experts(origin: Origin) -> bool:
    """Whether experts may be spread; a model that does not say is asked."""
    adapter = origin.adapter
    return "ep" in adapter.plan_axes() if isinstance(adapter, KnowsPlans) else True


@dataclass
class _Search:
    """The plans found so far. Plans whose ranks run the same are traced once."""

    origin: Origin
    rates: RateSource
    cluster: Cluster
    found: list[PlanFigures] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)  # reason -> plans
    graphs: tuple[CallGraph, ...] = ()
    _traced: dict[tuple[ParallelPlan, int], TracedRun] = field(default_factory=dict)

    def add(self, plan: ParallelPlan) -> None:
        """Trace a plan and keep its figures, or the reason why there are none."""
        batch, shared = self.origin.workload.batch, plan.dp * plan.fsdp
        if batch % shared:
            sequences = "one sequence" if batch == 1 else f"{batch:,} sequences"
            self._refuse(plan, f"{sequences} cannot be shared by {shared} replicas; choose a batch that can")
            return
        try:
            traced = self._trace(plan, batch // shared)
        except LimitReached:
            raise
        except PerfOptError as error:
            self._refuse(plan, _reason(plan, error))
            return
        kinds = _phases(traced)
        self.rates.meet([graph for graphs in kinds for graph in graphs])
        figures = plan_figures(plan, rank_kinds(kinds, self.rates, plan), self.cluster, batch // shared)
        self.found.append(figures)
        if ranked(self.found)[0] is figures:
            self.graphs = traced.graphs

    def _trace(self, plan: ParallelPlan, batch: int) -> TracedRun:
        key = (replace(plan, dp=1), batch)
        if key not in self._traced:
            origin = replace(self.origin, workload=replace(self.origin.workload, batch=batch))
            self._traced = {key: trace_ranks(origin, plan) if plan.is_spread else trace_origin(origin)}
        return self._traced[key]

    def _refuse(self, plan: ParallelPlan, why: str) -> None:
        self.refused.setdefault(why, []).append(plan.describe())


def _reason(plan: ParallelPlan, error: PerfOptError) -> str:
    """Why, without the name of the plan, so that plans which are refused alike have one reason."""
    names_plan = plan.describe() in error.what
    return " ".join(part for part in (None if names_plan and error.why else error.what, error.why) if part)


def _phases(trace: TracedRun) -> Sequence[tuple[CallGraph, ...]]:
    return [rank._finished() for rank in trace.ranks]
