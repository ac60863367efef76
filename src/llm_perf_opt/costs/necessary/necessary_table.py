"""Necessary work beside the work as written: the table, and a sentence for each difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.report import Column, Kind, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_bytes, format_flops, format_number_of
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.necessary.expert_blocks import AS_TRACED, BALANCED, UNIFORM
from llm_perf_opt.costs.necessary.stage_needs import ExpertReads, NecessaryWork, necessary_by_stage
from llm_perf_opt.costs.stage_costs import stage_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """One stage as written, and what is necessary of it; None where the trace does not show it."""

    name: str
    flops: int | None
    bytes_moved: int | None
    necessary: NecessaryWork | None


WORTH_SAYING = 0.10  # of the work as written
_POLICIES = {
    UNIFORM: "the number expected when every token chooses uniformly",
    BALANCED: "as many as so many tokens can touch",
    "one": "every token chooses the same",
    AS_TRACED: "as many as the trace touched",
}


def difference_notes(stages: Sequence[StageNeeds]) -> Iterator[Note]:
    """Where work as written exceeds what is necessary by more than a tenth: a sentence per stage, and one for bytes."""
    known = [stage for stage in stages if stage.necessary is not None]
    for stage in known:
        yield from _flops_note(stage)
    moved = [text for stage in known for text in _bytes_text(stage)]
    if moved:
        yield Note(
            f"More bytes are moved than must be read once in {', '.join(moved)}: "
            "the rest is intermediate results, and copies of the cache or of weights."
        )


def _flops_note(stage: StageNeeds) -> Iterator[Note]:
    needed = stage.necessary
    if needed is None or stage.flops is None or stage.flops - needed.flops <= WORTH_SAYING * stage.flops:
        return
    reasons = sorted(needed.saved.items(), key=lambda item: -item[1])
    shown = [f"{format_flops(count)} are {reason}" for reason, count in reasons if count > 0.01 * stage.flops]
    yield Note(
        f"{stage.name}: the code runs {format_flops(stage.flops)} where {format_flops(needed.flops)} are necessary. "
        f"{'; '.join(shown)}."
    )


def _bytes_text(stage: StageNeeds) -> Iterator[str]:
    needed = None if stage.necessary is None else stage.necessary.bytes
    if needed is None or stage.bytes_moved is None or stage.bytes_moved - needed <= WORTH_SAYING * stage.bytes_moved:
        return
    yield f"{stage.name} ({format_bytes(stage.bytes_moved)} against {format_bytes(needed)})"


def expert_notes(stage: str, necessary: NecessaryWork) -> Iterator[Note]:
    """The policy next to the figures that depend on it; layers that need fewer tokens are named with the reason."""
    if not necessary.distinct_experts:
        return
    first, *others = sorted(necessary.distinct_experts, key=lambda one: -one.layers)
    told = [f"{stage}: {_reads_text(first)}."]
    for reads in others:
        why = " as only the last position of each sequence is needed there" if reads.tokens < first.tokens else ""
        told.append(f"Besides, {_reads_text(reads)}{why}.")
    policy = _POLICIES.get(first.policy, "as the trace was routed")
    yield Note(" ".join((*told, f"Routing policy {first.policy}: {policy}.")))


def _reads_text(reads: ExpertReads) -> str:
    layers = "1 expert layer" if reads.layers == 1 else f"each of {reads.layers} expert layers"
    routed = f"({format_number_of(reads.tokens, 'token')} choosing {reads.chosen})"
    if reads.ranks == 1:
        return f"{layers} reads {reads.distinct:.4g} of its {reads.experts} experts {routed}"
    total, experts = reads.distinct * reads.ranks, reads.experts * reads.ranks
    most = "" if reads.on_fullest is None else f"; the slowest rank, the one with the most, {reads.on_fullest:.4g}"
    return (
        f"{layers} reads {reads.distinct:.4g} of the {reads.experts} experts of a rank, on average over the "
        f"{reads.ranks} ranks that read {total:.4g} of {experts} together {routed}{most}"
    )


def stage_needs(graphs: Sequence[CallGraph]) -> tuple[StageNeeds, ...]:
    """Every stage that ran, in order; nothing of a trace without ops."""
    return tuple(found for graph in graphs if graph.ops is not None for found in _of_phase(graph))


def _of_phase(graph: CallGraph) -> Iterator[StageNeeds]:
    needs = necessary_by_stage(graph)
    for cost in stage_costs(graph).ran:
        yield StageNeeds(name=cost.name, flops=cost.flops, bytes_moved=cost.bytes_moved, necessary=needs.get(cost.name))


def necessary_table(stages: Sequence[StageNeeds]) -> Table:
    """A row per stage, and the sums; an unknown part makes its sum unknown."""
    table = table_of(
        "As written and necessary",
        [(stage, stage.necessary) for stage in stages],
        {
            Column("stage"): lambda row: row[0].name,
            Column("FLOPs as written", Kind.FLOPS): lambda row: row[0].flops,
            Column("necessary", Kind.FLOPS): lambda row: None if row[1] is None else row[1].flops,
            Column("bytes moved as written", Kind.BYTES): lambda row: row[0].bytes_moved,
            Column("must be read", Kind.BYTES): lambda row: None if row[1] is None else row[1].bytes,
            Column("of it weights", Kind.BYTES): lambda row: None if row[1] is None else row[1].weight_bytes,
            Column("of it cache", Kind.BYTES): lambda row: None if row[1] is None else row[1].cache_bytes,
        },
    )
    columns = [[cell for cell in column if not isinstance(cell, str)] for column in zip(*table.rows, strict=True)]
    return replace(table, footer=("total", *map(known_sum, columns[1:]))) if stages else table


def with_necessary(report: Report, stages: Sequence[StageNeeds]) -> Report:
    """The report with this table behind its first one; as it is where no phase shows what is necessary."""
    if not any(stage.necessary is not None for stage in stages):
        return report
    first, rest = report.tables[:1], report.tables[1:]
    return replace(
        report, tables=(*first, necessary_table(stages), *rest), notes=(*report.notes, *necessary_notes(stages))
    )


def necessary_notes(stages: Sequence[StageNeeds]) -> Iterator[Note]:
    """Where a stage does more than it must, why; and by which policy its experts are counted."""
    yield Note(
        "As written is what this code runs. Necessary is what any implementation must do: positions that are used, "
        "visible pairs, each used weight and the cache read once as stored."
    )
    yield from difference_notes(stages)
    for stage in stages:
        if stage.necessary is not None:
            yield from expert_notes(stage.name, stage.necessary)
