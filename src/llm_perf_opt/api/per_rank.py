"""A model that is split between ranks: what each kind of rank holds, runs and communicates, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware.links import Hardware
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.report import Report
from llm_perf_opt.costs.run_description import deployment_notes, workload_note
from llm_perf_opt.serving.rank_figures import (
    Balance,
    Phases,
    PhaseTimes,
    RankFigures,
    balances,
    rank_kinds,
    rank_notes,
    rank_tables,
)
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import find_machine, source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.deployed_traces import deployed_device
from llm_perf_opt.tracing.traced_run import TracedRun


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RanksAnswer(Answer):
    """One record for each kind of rank, and how equal they are. Without a device there are no times."""

    model: str
    plan: ParallelPlan
    machine: str | None  # that times and fits hold for
    kinds: tuple[RankFigures, ...]
    balances: tuple[Balance, ...]  # empty where there is one kind
    _graph: CallGraph  # a phase of the first kind

    @property
    def fits(self) -> bool | None:
        """Whether every rank serves the batch; None where that is not known of one, or no device was named."""
        verdicts = [None if kind.serving is None else kind.serving.fits for kind in self.kinds]
        return False if False in verdicts else None if None in verdicts else True

    def report(self) -> Report:
        """The ranks by kind and phase, the balance between them, and what is replicated on every rank."""
        where = "" if self.machine is None else f" on {self.machine}"
        report = Report(
            title=f"{self.model}, {self.plan.describe()}{where}: what each rank holds and runs",
            notes=(workload_note([self._graph]), *deployment_notes([self._graph])),
        )
        return _with_ranks(report, self, with_times=True)


def with_ranks(report: Report, ranks: RanksAnswer | None) -> Report:
    """The report with the tables of ranks behind its own; as it is where nothing is spread.

    Where all ranks are of one kind, its times are those that the report shows already.
    """
    return report if ranks is None else _with_ranks(report, ranks, with_times=len(ranks.kinds) > 1)


def _with_ranks(report: Report, ranks: RanksAnswer, *, with_times: bool) -> Report:
    tables = rank_tables(ranks.plan, ranks.kinds, with_times=with_times)
    notes = tuple(rank_notes(ranks.plan, ranks._graph, ranks.kinds, with_times=with_times))
    return replace(report, tables=(*report.tables, *tables), notes=(*report.notes, *notes))


def ranks_answer(
    kinds: Sequence[Phases], rates: RateSource | None = None, known_times: Sequence[PhaseTimes] = ()
) -> RanksAnswer | None:
    """The answer from the phases of each kind of rank; None where the model is not spread.

    `known_times` are the times of the first kinds, as far as they are known already.
    """
    first = kinds[0][0]
    plan = plan_in(first.deployment)
    if plan is None:
        return None
    counted = rank_kinds(kinds, rates, plan, known_times)
    return RanksAnswer(
        model=first.model,
        plan=replace(plan, rank=None),
        machine=None if rates is None else rates.title,
        kinds=counted,
        balances=balances(counted),
        _graph=first,
    )


def per_rank(
    run: TracedRun,
    device: str | Hardware | None = None,
    *,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
) -> RanksAnswer | None:
    """The answer for a run; `device` is one, or a cluster, by default what the run was made for."""
    kinds = [rank._finished() for rank in run.ranks]
    device = deployed_device(run.graphs) if device is None else device
    if device is None:
        return ranks_answer(kinds)
    machine = find_machine(device, devices_file=devices_file, execution=execution, graphs=kinds[0])
    return ranks_answer(kinds, source_of(machine, execution, rates=None, runs=kinds))
