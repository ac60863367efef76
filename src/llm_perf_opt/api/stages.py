"""What each stage of a trace runs and costs, as written and as necessary, and how long it took where that was timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.per_rank import RanksAnswer, ranks_answer, with_ranks
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.report import Report, counted, largest_text, stage_names
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.units import format_bytes, format_count, format_flops, format_parameters
from llm_perf_opt.costs.collectives import with_collectives
from llm_perf_opt.costs.coverage import UnpricedOp, known_sum, price_coverage
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork, StageNeeds, necessary_by_stage, with_necessary
from llm_perf_opt.costs.stage_costs import StageCost, StageCosts, run_costs, stage_costs, stage_report
from llm_perf_opt.graphs.call_checks import TITLE as CALLS_TABLE
from llm_perf_opt.graphs.call_checks import CallCheck, call_checks, with_call_checks
from llm_perf_opt.measurements.measured_time import time_report


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
    call_checks: tuple[CallCheck, ...]  # calls expected and found; empty where no rule is known
    ranks: RanksAnswer | None = None  # None: the model runs on one device, or a phase stopped half-way
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

    @property
    def calls_as_expected(self) -> bool | None:
        """Whether every kind of module ran as often as the inputs and the configuration imply; None: no rule."""
        return all(check.is_as_expected for check in self.call_checks) if self.call_checks else None

    @property
    def answer(self) -> tuple[str, ...]:
        """How much runs, where most of it is, and whether anything is missing."""
        total, unpriced = self.total, self.unpriced_ops
        moved = "" if total.bytes_moved is None else f" and {format_bytes(total.bytes_moved)} moved"
        flops = "FLOPs not known" if total.flops is None else format_flops(total.flops)
        first = f"{self.model}: {flops}{moved} in {format_count(total.calls)} module calls"
        by_stage = dict(zip(stage_names(self.stages), (stage.cost for stage in self.stages), strict=True))
        most = [
            ("FLOPs", largest_text({name: cost.flops for name, cost in by_stage.items()})),
            ("bytes", largest_text({name: cost.bytes_moved for name, cost in by_stage.items()})),
        ]
        where = "; ".join(f"most {what}: {text}" for what, text in most if text)
        holes = "The tracer saw no ops" if unpriced is None else "Every op has a price"
        holes = f"{counted(unpriced, 'op has', 'ops have')} no price" if unpriced else holes
        verdicts = {True: "; calls are as expected", False: "; calls are not as expected", None: ""}
        calls = verdicts[self.calls_as_expected]
        lines = (f"{first}, {format_parameters(total.parameters)} parameters.", _sentence(where), f"{holes}{calls}.")
        return tuple(line for line in lines if line)

    def report(self) -> Report:
        """The table of stages, what is necessary, calls expected and found, and the times."""
        costs = StageCosts(stages=tuple(stage.cost for stage in self.stages), total=self.total)
        report = with_collectives(stage_report(self._graphs, costs), self._graphs)
        report = replace(report, answer=self.answer)
        if self._measured is not None:
            return _joined(report, time_report(self._measured, self._graphs))
        report = with_call_checks(with_necessary(report, tuple(self._needs())), self.call_checks)
        timed = [graph for graph in self._graphs if graph.calls is not None and graph.calls.started_ns]
        report = _joined(report, time_report(timed)) if timed else report
        return with_ranks(report, self.ranks)

    def summary(self) -> Report:
        """The same for a terminal: where every check of calls holds, a note says so in place of the table."""
        report = self.report()
        if not self.calls_as_expected:
            return report
        return replace(report, tables=tuple(table for table in report.tables if table.title != CALLS_TABLE))

    def _needs(self) -> Iterator[StageNeeds]:
        """The stages of phases with recorded ops."""
        seen = {graph.phase for graph in self._graphs if graph.ops is not None}
        for stage in self.stages:
            if stage.phase in seen:
                yield StageNeeds(
                    name=stage.name,
                    flops=stage.cost.flops,
                    bytes_moved=stage.cost.bytes_moved,
                    necessary=stage.necessary,
                )


def stages_answer(
    graphs: tuple[CallGraph, ...],
    measured: tuple[CallGraph, ...] | None = None,
    others: Sequence[tuple[CallGraph, ...]] = (),
) -> StagesAnswer:
    """The stages of all phases of one run; `measured` are traces of the same run that hold times.

    `others` are the phases of further kinds of rank, where the model is spread.
    """
    is_whole = all(graph.stopped_in is None and graph.ops is not None for other in (graphs, *others) for graph in other)
    stages = tuple(stage for graph in graphs for stage in _stages(graph))
    return StagesAnswer(
        model=graphs[0].model,
        workload=graphs[0].workload,
        stages=stages,
        total=run_costs(graphs, [stage.cost for stage in stages]).total,
        call_checks=call_checks(graphs),
        ranks=ranks_answer((graphs, *others)) if is_whole else None,
        _graphs=graphs,
        _measured=measured,
    )


def _stages(graph: CallGraph) -> Iterator[TracedStage]:
    necessary = {} if graph.ops is None else necessary_by_stage(graph)
    for cost in stage_costs(graph).ran:
        yield TracedStage(phase=graph.phase, name=cost.name, cost=cost, necessary=necessary.get(cost.name))


def _joined(first: Report, second: Report) -> Report:
    return replace(first, tables=(*first.tables, *second.tables), notes=(*first.notes, *second.notes))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
