"""The kinds of rank of a plan as tables: what each holds, runs and exchanges, whether it fits, how equal they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.report import Column, Kind, Note, Table, table_of
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.need import replicated_notes, replicated_table
from llm_perf_opt.serving.ranks.rank_figures import Balance, RankFigures, RankPhase, balances

RANKS_TABLE = "Ranks"
_Row = tuple[RankFigures, RankPhase]


def rank_tables(plan: ParallelPlan, kinds: Sequence[RankFigures], *, with_times: bool) -> tuple[Table, ...]:
    """Ranks by kind and phase, the balance between kinds, and what is whole on every rank."""
    tables = [ranks_table(kinds)]
    if with_times and any(phase.time is not None for kind in kinds for phase in kind.phases):
        tables.append(communication_table(kinds))
    if found := balances(kinds):
        tables.append(_balance_table(found))
    first = kinds[0]
    if first.replicated and plan.replica_ranks > 1:
        tables.append(replicated_table(first.replicated, first.weight_bytes))
    return tuple(tables)


def ranks_table(kinds: Sequence[RankFigures]) -> Table:
    """One row per kind of rank and phase."""
    has_fit = any(kind.serving is not None for kind in kinds)
    fit = {
        Column("serves"): lambda row: _yes_no(row[0]),
        Column("room left", Kind.BYTES): lambda row: room_left(row[0]),
    }
    return table_of(
        RANKS_TABLE,
        [(kind, phase) for kind in kinds for phase in kind.phases],
        {
            Column("rank", Kind.COUNT): lambda row: row[0].rank,
            Column("ranks alike", Kind.COUNT): lambda row: row[0].ranks,
            Column("phase"): lambda row: row[1].phase,
            **(fit if has_fit else {}),
            Column("weights", Kind.BYTES): lambda row: row[1].weight_bytes,
            Column("KV cache", Kind.BYTES): lambda row: row[1].cache_bytes,
            Column("needed in all", Kind.BYTES): lambda row: row[1].needed_bytes,
            Column("FLOPs", Kind.FLOPS): lambda row: row[1].flops,
            Column("bytes moved", Kind.BYTES): lambda row: row[1].bytes_moved,
            Column("launches", Kind.COUNT): lambda row: row[1].launches,
            Column("collectives"): lambda row: describe_collectives(row[1]),
            Column("bytes sent", Kind.BYTES): lambda row: row[1].sent_bytes,
        },
    )


def communication_table(kinds: Sequence[RankFigures]) -> Table:
    """Bound and band of each phase of each kind of rank, and its communication."""
    rows: list[_Row] = [(kind, phase) for kind in kinds for phase in kind.phases if phase.time is not None]
    is_expected = any(phase.time is not None and phase.time.expected_s is not None for _, phase in rows)
    return Table(
        title="Time of each kind of rank",
        columns=(
            Column("rank", Kind.COUNT),
            Column("phase"),
            Column("lower bound", Kind.SECONDS),
            Column("low", Kind.SECONDS),
            *((Column("expected", Kind.SECONDS),) if is_expected else ()),
            Column("high", Kind.SECONDS),
            Column("communication low", Kind.SECONDS),
            Column("communication high", Kind.SECONDS),
            Column("exposed low", Kind.SECONDS),
            Column("exposed high", Kind.SECONDS),
            Column("exposed share", Kind.RATIO),
        ),
        rows=tuple(
            (
                kind.rank,
                phase.phase,
                time.lower_bound_s,
                time.low_s,
                *((time.expected_s,) if is_expected else ()),
                time.high_s,
                None if time.communication is None else time.communication.low,
                None if time.communication is None else time.communication.high,
                None if time.exposed is None else time.exposed.low,
                None if time.exposed is None else time.exposed.high,
                time.exposed_share,
            )
            for kind, phase in rows
            if (time := phase.time) is not None
        ),
    )


def _balance_table(found: Sequence[Balance]) -> Table:
    """Figures of different units in one table, so each is named with its unit in words."""
    columns = (
        Column("phase"),
        Column("figure"),
        Column("least", Kind.COUNT),
        Column("mean", Kind.COUNT),
        Column("most", Kind.COUNT),
        Column("most over mean", Kind.RATIO),
    )
    rows = tuple((one.phase, one.figure, one.least, round(one.mean), one.most, one.imbalance) for one in found)
    return Table(title="Balance between ranks", columns=columns, rows=rows)


def describe_collectives(phase: RankPhase) -> str:
    """In words: `160 all-reduce of 2.5 GiB, 1 all-gather of 250 KiB`."""
    found = [
        f"{one.count:,} {one.kind}" + ("" if one.payload_bytes is None else f" of {format_bytes(one.payload_bytes)}")
        for one in phase.collectives
    ]
    return ", ".join(found) or "none"


def room_left(kind: RankFigures) -> int | None:
    """What is free once weights, working memory and the cache of the batch are there; below zero: too much."""
    fit = kind.serving
    return (
        None if fit is None or fit.room_bytes is None or fit.cache_bytes is None else fit.room_bytes - fit.cache_bytes
    )


def _yes_no(kind: RankFigures) -> str | None:
    fits = None if kind.serving is None else kind.serving.fits
    return None if fits is None else "yes" if fits else "no"


def rank_notes(
    plan: ParallelPlan, graph: CallGraph, kinds: Sequence[RankFigures], *, with_times: bool
) -> Iterator[Note]:
    """What a row stands for, how its time is meant, and what is not spread."""
    yield Note(
        f"Plan {plan.describe()}: {plan.ranks:,} ranks. A row of the table of ranks stands for as many as it says. "
        "The bytes of collectives are their payloads; bytes sent are those of a ring, or to each peer."
    )
    if with_times and any(phase.time is not None for kind in kinds for phase in kind.phases):
        yield Note(
            "Communication may overlap with other work: the lower bound is the largest of compute, memory and "
            "communication. The band runs from full overlap to none. Exposed is what nothing hides, at both ends."
        )
    if kinds[0].replicated:
        yield from replicated_notes(graph, kinds[0].replicated, kinds[0].weight_bytes)
