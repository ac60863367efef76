"""The collectives of a trace: by the call that asked for them, and by kind, module family and group of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import label_of, path_pattern, stage_names, stage_of_calls
from llm_perf_opt.core.collectives import Collective, collective_of
from llm_perf_opt.core.report import Column, Kind, Report, Table

OUTSIDE = "(in no module)"
_MOST_RUNS = 3  # of numbers in the label of a family


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCollectives:
    """Equal collectives of modules with paths that differ in numbers alone."""

    stage: str
    family: str  # `model.layers.[0-79].mlp.down_proj`
    collective: Collective
    count: int

    @property
    def payload_bytes(self) -> int:
        """Of all of them together."""
        return self.count * self.collective.payload_bytes


def collectives_by_call(graph: CallGraph) -> dict[int, Counter[Collective]]:
    """Row of a call -> the collectives that it asked for itself; -1: in no module. Empty on one device."""
    by_call: dict[int, Counter[Collective]] = {}
    if graph.ops is None:
        return by_call
    by_kind = {
        number: known for number, kind in enumerate(graph.op_kinds) if (known := collective_of(kind)) is not None
    }
    if by_kind:
        for call, kind in zip(graph.ops.call, graph.ops.kind, strict=True):
            if kind in by_kind:
                by_call.setdefault(call, Counter())[by_kind[kind]] += 1
    return by_call


def family_collectives(graph: CallGraph) -> list[FamilyCollectives]:
    """Every collective of the run, put together by stage and family, in the order of the first."""
    calls = collectives_by_call(graph)
    if not calls:
        return []
    stages, stage_of = stage_names(graph), stage_of_calls(graph)
    counts: dict[tuple[str, str, Collective], int] = {}
    paths: dict[tuple[str, str, Collective], dict[str, None]] = {}
    for call, in_call in sorted(calls.items()):
        path = _path(graph, call)
        stage = graph.phase if call < 0 else stages[stage_of[call]]
        for collective, count in in_call.items():
            key = (stage, path_pattern(path), collective)
            counts[key] = counts.get(key, 0) + count
            paths.setdefault(key, {})[path] = None
    return [
        FamilyCollectives(stage=stage, family=label_of([*paths[key]], _MOST_RUNS), collective=key[2], count=count)
        for key, count in counts.items()
        for stage in [key[0]]
    ]


def _path(graph: CallGraph, call: int) -> str:
    if call < 0 or graph.calls is None:
        return OUTSIDE
    return graph.paths[graph.calls.path[call]] or "(root)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTotal:
    """How many, and the bytes of their payloads together."""

    count: int
    payload_bytes: int


def by_stage(graph: CallGraph) -> Mapping[str, CollectiveTotal]:
    """The collectives of each stage that asks for any."""
    by_phase: dict[str, list[FamilyCollectives]] = {}
    for part in family_collectives(graph):
        by_phase.setdefault(part.stage, []).append(part)
    return {stage: total_of(parts) for stage, parts in by_phase.items()}


def total_of(parts: Iterable[FamilyCollectives]) -> CollectiveTotal:
    """The sum over families."""
    listed = list(parts)
    return CollectiveTotal(
        count=sum(part.count for part in listed), payload_bytes=sum(part.payload_bytes for part in listed)
    )


_COLUMNS = (
    Column("phase"),
    Column("stage"),
    Column("collective"),
    Column("modules"),
    Column("ranks", Kind.COUNT),
    Column("group"),
    Column("count", Kind.COUNT),
    Column("payload each", Kind.BYTES),
    Column("payload", Kind.BYTES),
)


def collectives_table(graphs: Iterable[CallGraph]) -> Table | None:
    """One row per phase, stage, kind, family and group; None where no rank sends anything."""
    rows = tuple(_rows(graphs))
    if not rows:
        return None
    return Table(
        title="Collectives",
        columns=_COLUMNS,
        rows=rows,
        formulas={"payload": ("times", "count", "payload each")},
        origin="collectives that the traced rank calls",
    )


def with_collectives(report: Report, graphs: Sequence[CallGraph]) -> Report:
    """The report with that table behind its others, where there is one."""
    table = collectives_table(graphs)
    return report if table is None else replace(report, tables=(*report.tables, table))


def _rows(graphs: Iterable[CallGraph]) -> Iterator[tuple[str, str, str, str, int, str, int, int, int]]:
    for graph in graphs:
        for part in family_collectives(graph):
            collective = part.collective
            yield (
                graph.phase,
                part.stage,
                str(collective.kind),
                part.family,
                collective.group.size,
                str(collective.group),
                part.count,
                collective.payload_bytes,
                part.payload_bytes,
            )
