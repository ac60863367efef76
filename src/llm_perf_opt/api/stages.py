"""What each stage of a trace runs and costs, as written and as necessary, and how long it took where that was timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.cost.coverage import UnpricedOp, known_sum, price_coverage
from llm_perf_opt.analyses.cost.parameters import count_distinct_parameters
from llm_perf_opt.analyses.cost.stage_costs import StageCost, stage_costs, stage_report, sum_of_stages
from llm_perf_opt.analyses.measured_time import time_report
from llm_perf_opt.analyses.necessary.necessary_table import stage_needs, with_necessary
from llm_perf_opt.analyses.necessary.stage_needs import NecessaryWork
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.target import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """One stage of one phase: its cost as the code is written, and what any implementation must do."""

    phase: str
    name: str
    cost: StageCost
    necessary: NecessaryWork | None  # None: the trace does not tell


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StagesAnswer(Answer):
    """Every stage in which anything ran, and all of them together; weights that phases share count once."""

    model: str
    workload: Mapping[str, Json]
    stages: tuple[TracedStage, ...]
    total: StageCost
    _graphs: tuple[CallGraph, ...]
    _measured: tuple[CallGraph, ...] | None = None  # of the same run, by a tracer that measures

    @property
    def flops(self) -> int | None:
        """All stages together; None where the tracer sees no ops."""
        return self.total.flops

    @property
    def bytes_moved(self) -> int | None:
        """All stages together."""
        return self.total.bytes_moved

    @property
    def necessary_flops(self) -> int | None:
        """What any implementation must compute; one unknown stage makes the sum unknown."""
        return known_sum(None if stage.necessary is None else stage.necessary.flops for stage in self.stages)

    @property
    def necessary_bytes(self) -> int | None:
        """What any implementation must read, each weight and the cache once per forward."""
        return known_sum(None if stage.necessary is None else stage.necessary.bytes for stage in self.stages)

    @property
    def parameters(self) -> int:
        """Elements of distinct weights."""
        return self.total.parameters

    @property
    def unpriced_ops(self) -> int | None:
        """Ops that are in no total; None where the tracer sees no ops."""
        if any(graph.ops is None for graph in self._graphs):
            return None
        return sum(price_coverage(graph).unpriced_ops for graph in self._graphs)

    @property
    def unpriced(self) -> tuple[UnpricedOp, ...]:
        """These ops by name."""
        return self.total.unpriced

    def report(self) -> Report:
        """The table of stages, what is necessary, and the times."""
        if self._measured is not None:
            return _joined(stage_report(self._graphs), time_report(self._measured, self._graphs))
        report = with_necessary(stage_report(self._graphs), self._graphs)
        timed = [graph for graph in self._graphs if graph.calls is not None and graph.calls.started_ns]
        return _joined(report, time_report(timed)) if timed else report


def stages_answer(graphs: tuple[CallGraph, ...], measured: tuple[CallGraph, ...] | None = None) -> StagesAnswer:
    """The stages of all phases of one run; `measured` are traces of the same run that hold times."""
    stages = tuple(stage for graph in graphs for stage in _stages(graph))
    total = sum_of_stages(
        "total",
        [stage.cost for stage in stages],
        modules=len({path for graph in graphs for path in graph.call_counts}),
        parameters=count_distinct_parameters(graphs),
    )
    return StagesAnswer(
        model=graphs[0].model,
        workload=graphs[0].workload,
        stages=stages,
        total=total,
        _graphs=graphs,
        _measured=measured,
    )


def _stages(graph: CallGraph) -> Sequence[TracedStage]:
    necessary = {stage.name: stage.necessary for stage in stage_needs([graph])}
    ran = (cost for cost in stage_costs(graph).stages if cost.calls or cost.ops)
    return [
        TracedStage(phase=graph.phase, name=cost.name, cost=cost, necessary=necessary.get(cost.name)) for cost in ran
    ]


def _joined(first: Report, second: Report) -> Report:
    return replace(first, tables=(*first.tables, *second.tables), notes=(*first.notes, *second.notes))
