"""The per-stage table of a run: one row per stage and phase, the totals, and every reservation about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.cost.coverage import UnpricedOp
from llm_perf_opt.analyses.cost.parameters import count_distinct_parameters
from llm_perf_opt.analyses.cost.stage_costs import StageCost, stage_costs, sum_of_stages
from llm_perf_opt.analyses.run_description import deployment_notes, run_notes, workload_note
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table
from llm_perf_opt.core.units import format_count

_COLUMNS = (
    Column("stage"),
    Column("modules", Kind.COUNT),
    Column("calls", Kind.COUNT),
    Column("parameters", Kind.COUNT),
    Column("FLOPs", Kind.FLOPS),
    Column("MACs", Kind.MACS),
    Column("bytes moved", Kind.BYTES),
    Column("activation bytes", Kind.BYTES),
    Column("unpriced ops", Kind.COUNT),
)
_NAMED_SITES = 5


def stage_report(graphs: Sequence[CallGraph]) -> Report:
    """The stages of all phases of one run, in order.

    In the row of totals, modules and parameters are counted once however many phases use them.
    """
    stages = [stage for graph in graphs for stage in stage_costs(graph).stages if stage.calls or stage.ops]
    total = sum_of_stages(
        "total",
        stages,
        modules=len({path for graph in graphs for path in graph.call_counts}),
        parameters=count_distinct_parameters(graphs),
    )
    table = Table(
        title="Cost by stage",
        columns=_COLUMNS,
        rows=tuple(_row(stage) for stage in stages),
        footer=_row(total),
    )
    model = graphs[0].model if graphs else ""
    return Report(title=f"{model}: what runs and what it costs", tables=(table,), notes=tuple(_notes(graphs, total)))


def _row(stage: StageCost) -> tuple[Cell, ...]:
    return (
        stage.name,
        stage.modules,
        stage.calls,
        stage.parameters,
        stage.flops,
        stage.macs,
        stage.bytes_moved,
        stage.activation_bytes,
        None if stage.ops is None else stage.unpriced_ops,
    )


def _notes(graphs: Sequence[CallGraph], total: StageCost) -> Iterator[Note]:
    if graphs and graphs[0].workload:
        yield workload_note(graphs)
    yield from deployment_notes(graphs)
    yield Note(
        "FLOPs are those of matrix products, convolutions and attention; a multiply-add counts as two, "
        "and causal attention is not halved."
    )
    if total.ops is None:
        yield Note("This trace holds no ops that could be priced: FLOPs and bytes are unknown.", Level.WARNING)
    yield from map(_unpriced_note, total.unpriced)
    for graph in graphs:
        if graph.stopped_in is not None:
            yield Note(f"{graph.phase}: the run stopped in {graph.stopped_in}; what follows is missing.", Level.WARNING)
    yield from run_notes(graphs)
    yield from _oracle_notes(graphs)


def _unpriced_note(op: UnpricedOp) -> Note:
    return Note(op.sentence, Level.WARNING)


def _oracle_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """One sentence per op and policy: where the trace is a model of the run and not the run itself."""
    counts: Counter[tuple[str, str]] = Counter()
    sites: dict[tuple[str, str], dict[str, None]] = {}
    for graph in graphs:
        for answer in graph.oracle_answers:
            counts[answer.op, answer.policy] += answer.count
            sites.setdefault((answer.op, answer.policy), {})[answer.site] = None
    for (op, policy), count in counts.items():
        asked = list(sites[op, policy])
        shown = ", ".join(asked[:_NAMED_SITES]) + (", ..." if len(asked) > _NAMED_SITES else "")
        yield Note(f"No weights: {op} was answered {format_count(count)} times by policy {policy!r}, asked at {shown}.")
