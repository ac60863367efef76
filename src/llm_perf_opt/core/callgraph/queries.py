"""What analyses ask of a call graph, answered over whole columns: a million ops in well under a second."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, OpKind, TensorMeta
from llm_perf_opt.core.errors import PerfOptError

T = TypeVar("T")


def calls_of(graph: CallGraph) -> CallColumns:
    """The call columns, or an error that says the file has none: an analysis that needs them cannot guess."""
    if graph.calls is None:
        raise _without("module calls")
    return graph.calls


def ops_of(graph: CallGraph) -> OpColumns:
    """The op columns, or an error that says the file has none."""
    if graph.ops is None:
        raise _without("ops")
    return graph.ops


def _without(what: str) -> PerfOptError:
    return PerfOptError(
        f"The trace holds no {what}.",
        why="it was made by a tracer that does not see them, or only its totals were kept",
        fix="trace again with the weightless tracer; graph and compare need no more than totals",
    )


def ops_in_call(graph: CallGraph, call: int) -> range:
    """Rows of every op that ran inside the call, its children's included."""
    calls = calls_of(graph)
    return range(calls.first_op[call], calls.end_op[call])


def call_tensors(graph: CallGraph, call: int, side: str) -> Iterator[tuple[TensorMeta, int]]:
    """The tensors that went into a call (`side` "input") or came out of it ("output"), and their storages' rows."""
    calls = calls_of(graph)
    counts, metas, storages = (
        (calls.input_count, calls.input_metas, calls.input_storages)
        if side == "input"
        else (calls.output_count, calls.output_metas, calls.output_storages)
    )
    start = sum(counts[:call])
    rows = slice(start, start + counts[call])
    return zip((graph.tensor_metas[row] for row in metas[rows]), storages[rows], strict=True)


def ops_in_module(graph: CallGraph, path: str) -> list[range]:
    """Rows of every op that ran inside calls of the module; a call inside another call of it is not listed again."""
    calls = calls_of(graph)
    if path not in graph.paths:
        return []
    row, end, ranges = graph.paths.index(path), 0, []
    for call, path_row in enumerate(calls.path):
        if path_row == row and calls.end_op[call] > end:
            ranges.append(ops_in_call(graph, call))
            end = calls.end_op[call]
    return ranges


def forward_of_ops(graph: CallGraph) -> array[int]:
    """Per op, the number of the outermost module call it ran in or after, from 1; 0 before the first."""
    calls = graph.calls
    begins = set() if calls is None else {calls.first_op[i] for i, parent in enumerate(calls.parent) if parent < 0}
    return array("q", accumulate(int(row in begins) for row in range(len(ops_of(graph).kind))))


def count_kinds(graph: CallGraph, rows: range | None = None) -> dict[OpKind, int]:
    """How often each kind ran, among `rows` or all ops: the short way to any sum over ops."""
    column = ops_of(graph).kind
    chosen = column if rows is None else column[rows.start : rows.stop : rows.step]
    return {graph.op_kinds[row]: count for row, count in Counter(chosen).items()}


def stage_names(graph: CallGraph) -> tuple[str, ...]:
    """The stages in order, the phase last: it is the stage of whatever no stage claims."""
    names = dict.fromkeys(name for name, _ in graph.stages)
    return (*(name for name in names if name != graph.phase), graph.phase)


def stage_of_calls(graph: CallGraph) -> array[int]:
    """Per call, an index into `stage_names`.

    A stage claims a module below one of its paths, the longest path winning; a module that no stage claims belongs to
    the stage of the call that made it, so that a shared helper counts where it was used.
    """
    calls, names = calls_of(graph), stage_names(graph)
    claims = {path: names.index(name) for name, paths in graph.stages for path in paths}
    claimed = [deepest_claim(path, claims) for path in graph.paths]
    unclaimed = names.index(graph.phase)
    stages = array("q")
    for path_row, parent in zip(calls.path, calls.parent, strict=True):
        own = claimed[path_row]
        stages.append(own if own is not None else stages[parent] if parent >= 0 else unclaimed)
    return stages


def deepest_claim(path: str, claims: Mapping[str, T]) -> T | None:
    """What the module itself or the nearest module above it is claimed by."""
    while path not in claims:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return claims[path]


def stage_of_ops(graph: CallGraph) -> array[int]:
    """Per op, an index into `stage_names`; ops outside any module belong to the phase."""
    names = stage_names(graph)
    # The last entry is what index -1, "outside any call", arrives at.
    by_call = [*stage_of_calls(graph), names.index(graph.phase)]
    return array("q", map(by_call.__getitem__, ops_of(graph).call))


def count_kinds_by_stage(graph: CallGraph) -> dict[str, dict[OpKind, int]]:
    """Stage -> how often each kind ran in it. Stages are disjoint and together hold every op once."""
    names = stage_names(graph)
    by_stage: dict[str, dict[OpKind, int]] = {name: {} for name in names}
    for (stage, row), count in Counter(zip(stage_of_ops(graph), ops_of(graph).kind, strict=True)).items():
        by_stage[names[stage]][graph.op_kinds[row]] = count
    return by_stage


def tensor_offsets(graph: CallGraph) -> tuple[array[int], array[int]]:
    """Where each op's entries begin in `input_storages` and `output_storages`, with one more entry: where they end."""
    kinds = ops_of(graph).kind
    inputs = [len(kind.inputs) for kind in graph.op_kinds]
    outputs = [len(kind.outputs) for kind in graph.op_kinds]
    return (
        array("q", accumulate(map(inputs.__getitem__, kinds), initial=0)),
        array("q", accumulate(map(outputs.__getitem__, kinds), initial=0)),
    )


def events_of(graph: CallGraph) -> tuple[tuple[str, str], ...]:
    """`("enter" | "exit", path)` in the order in which it happened, read off the nesting of the calls."""
    calls = calls_of(graph)
    events: list[tuple[str, str]] = []
    stack: list[int] = []
    for call, parent in enumerate(calls.parent):
        while stack and stack[-1] != parent:
            events.append(("exit", graph.paths[calls.path[stack.pop()]]))
        events.append(("enter", graph.paths[calls.path[call]]))
        stack.append(call)
    events.extend(("exit", graph.paths[calls.path[call]]) for call in reversed(stack))
    return tuple(events)
