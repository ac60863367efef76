"""The table that puts necessary work beside the work as written, and what is said of the differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.analyses.known_sum import known_sum
from llm_perf_opt.analyses.necessary.sentences import BothWorks, difference_notes, expert_notes
from llm_perf_opt.analyses.necessary.stage_needs import necessary_by_stage
from llm_perf_opt.analyses.necessary.work import NecessaryWork
from llm_perf_opt.analyses.stage_costs import StageCost, stage_costs
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.document import Cell, Column, Kind, Note, Report, Table

_COLUMNS = (
    Column("stage"),
    Column("FLOPs as written", Kind.FLOPS),
    Column("necessary", Kind.FLOPS),
    Column("bytes moved as written", Kind.BYTES),
    Column("must be read", Kind.BYTES),
    Column("of it weights", Kind.BYTES),
    Column("of it cache", Kind.BYTES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """One stage of one phase in both kinds of work; `necessary` is None where the trace cannot tell."""

    cost: StageCost
    necessary: NecessaryWork | None


def stage_needs(graphs: Sequence[CallGraph]) -> tuple[StageNeeds, ...]:
    """Every stage that ran, in order; nothing of a trace without ops."""
    return tuple(found for graph in graphs if graph.ops is not None for found in _of_phase(graph))


def _of_phase(graph: CallGraph) -> Iterator[StageNeeds]:
    needs = necessary_by_stage(graph)
    for cost in stage_costs(graph).stages:
        if cost.calls or cost.ops:
            yield StageNeeds(cost=cost, necessary=needs.get(cost.name))


def necessary_table(stages: Sequence[StageNeeds]) -> Table:
    """A row per stage, and the sums; an unknown part makes its sum unknown."""
    rows: tuple[tuple[Cell, ...], ...] = tuple((stage.cost.name, *_figures(stage)) for stage in stages)
    figures = [_figures(stage) for stage in stages]
    sums = [known_sum(column) for column in zip(*figures, strict=True)]
    footer: tuple[Cell, ...] = ("total", *sums)
    return Table(title="As written and necessary", columns=_COLUMNS, rows=rows, footer=footer if figures else ())


def _figures(stage: StageNeeds) -> tuple[int | None, ...]:
    needs = stage.necessary
    return (
        stage.cost.flops,
        None if needs is None else needs.flops,
        stage.cost.bytes_moved,
        None if needs is None else needs.bytes,
        None if needs is None else needs.weight_bytes,
        None if needs is None else needs.cache_bytes,
    )


def with_necessary(report: Report, graphs: Sequence[CallGraph]) -> Report:
    """The report with this table behind its first one; as it is where no phase tells what is necessary."""
    stages = stage_needs(graphs)
    if not any(stage.necessary is not None for stage in stages):
        return report
    first, rest = report.tables[:1], report.tables[1:]
    return replace(
        report,
        tables=(*first, necessary_table(stages), *rest),
        notes=(*report.notes, *necessary_notes(stages)),
    )


def necessary_notes(stages: Sequence[StageNeeds]) -> Iterator[Note]:
    """Where a stage does more than it must, why; and by which policy its experts are counted."""
    yield Note(
        "As written is what this code runs. Necessary is what any implementation must do: positions that are used, "
        "visible pairs, each used weight and the cache read once as stored."
    )
    yield from difference_notes([_both(stage) for stage in stages])
    for stage in stages:
        if stage.necessary is not None:
            yield from expert_notes(stage.cost.name, stage.necessary)


def _both(stage: StageNeeds) -> BothWorks:
    return BothWorks(
        name=stage.cost.name,
        flops=stage.cost.flops,
        bytes_moved=stage.cost.bytes_moved,
        necessary=stage.necessary,
    )
