"""Several traces of one phase laid side by side: whether they are one program, and where they part.

One program means: the same ops in the same order in the same module calls, reading and writing the same blocks of
memory, born and freed at the same ops. Then only sizes differ, and each is a function of the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.callgraph.records import OpKind, StorageColumns

_CALL_COLUMNS = ("path", "parent", "first_op", "end_op", "input_count", "output_count", "input_storages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first place at which two traces are not the same program, or at which no rule gives a size."""

    what: str  # "ops", "memory", "calls", "a size", ...
    op: int | None  # row of the op
    text: str

    def __str__(self) -> str:
        return self.text


def same_program(graphs: Sequence[CallGraph]) -> Parting | None:
    """Where the graphs part; None where they are one program."""
    first = graphs[0]
    for other in graphs[1:]:
        parting = next(_partings(first, other), None)
        if parting is not None:
            return parting
    return None


def _partings(first: CallGraph, second: CallGraph) -> Iterator[Parting]:
    yield from _ops_part(first, second)
    left, right = calls_of(first), calls_of(second)
    if first.paths != second.paths or any(getattr(left, name) != getattr(right, name) for name in _CALL_COLUMNS):
        yield Parting(what="calls", op=None, text="other modules are called, or in another order")
    if left.output_storages != right.output_storages:
        yield Parting(what="calls", op=None, text="modules hand on other blocks of memory")
    yield from _memory_parts(first, second)


def _ops_part(first: CallGraph, second: CallGraph) -> Iterator[Parting]:
    left, right = _signatures(first), _signatures(second)
    pairs = enumerate(zip(ops_of(first).kind, ops_of(second).kind, strict=False))
    row = next((row for row, (a, b) in pairs if left[a] != right[b]), None)
    if row is not None:
        a, b = (graph.op_kinds[ops_of(graph).kind[row]] for graph in (first, second))
        yield Parting(what="ops", op=row, text=f"op {row} is {_shown(a)} in one trace and {_shown(b)} in another")
    elif len(ops_of(first).kind) != len(ops_of(second).kind):
        counts = sorted((len(ops_of(first).kind), len(ops_of(second).kind)))
        yield Parting(what="ops", op=counts[0], text=f"one trace has {counts[0]:,} ops and another {counts[1]:,}")
    for name in ("call", "input_storages", "output_storages"):
        if getattr(ops_of(first), name) != getattr(ops_of(second), name):
            yield Parting(what="ops", op=None, text=f"ops use other blocks of memory or calls ({name})")


def _shown(kind: OpKind) -> str:
    shapes = ", ".join("x".join(map(str, meta.shape)) or "scalar" for meta in kind.outputs[:2])
    return f"{kind.name} -> {shapes}" + (" (a view)" if kind.output_aliases and min(kind.output_aliases) >= 0 else "")


def _memory_parts(first: CallGraph, second: CallGraph) -> Iterator[Parting]:
    left, right = storages_of(first), storages_of(second)
    if (left.born_op, left.freed_op, left.origin) == (right.born_op, right.freed_op, right.origin):
        return
    if len(left.origin) != len(right.origin):
        yield Parting(what="memory", op=None, text=f"{len(left.origin):,} and {len(right.origin):,} blocks of memory")
        return
    rows = zip(left.born_op, left.freed_op, right.born_op, right.freed_op, strict=True)
    for born, freed, other_born, other_freed in rows:
        if (born, freed) != (other_born, other_freed):
            text = f"a block lives from op {born} to {freed} in one trace, {other_born} to {other_freed} in another"
            yield Parting(what="memory", op=born, text=text)
            return
    yield Parting(what="memory", op=None, text="blocks of memory have other origins")


def storages_of(graph: CallGraph) -> StorageColumns:
    """The blocks of memory; a trace that a function is made of always has them."""
    assert graph.storages is not None, "weightless traces follow memory"
    return graph.storages


Signature = tuple[object, ...]


def _signatures(graph: CallGraph) -> list[Signature]:
    return [signature(kind) for kind in graph.op_kinds]


def signature(kind: OpKind) -> Signature:
    """Everything of an op but sizes."""
    return (
        kind.name,
        tuple((meta.dtype, meta.device, len(meta.shape)) for meta in (*kind.inputs, *kind.outputs)),
        len(kind.inputs),
        kind.input_names,
        kind.output_aliases,
        kind.mutates,
        tuple(kind.arguments),
        tuple(signature(part) for part in kind.parts),
    )


def same_run(first: CallGraph, second: CallGraph) -> Parting | None:
    """The first difference; None where two graphs are equal to the last integer: ops, sizes, arguments, memory."""
    parting = same_program([first, second])
    if parting is not None:
        return parting
    equal = _kind_equality()
    for row, (a, b) in enumerate(zip(ops_of(first).kind, ops_of(second).kind, strict=True)):
        left, right = first.op_kinds[a], second.op_kinds[b]
        if not equal(left, right):
            shapes = " and ".join(str([list(meta.shape) for meta in (*k.inputs, *k.outputs)]) for k in (left, right))
            return Parting(what="sizes", op=row, text=f"op {row}, {left.name}, has the sizes {shapes}")
    left_bytes, right_bytes = storages_of(first).bytes, storages_of(second).bytes
    if left_bytes != right_bytes:
        pairs = enumerate(zip(left_bytes, right_bytes, strict=True))
        place, (mine, theirs) = next((row, pair) for row, pair in pairs if pair[0] != pair[1])
        born = storages_of(first).born_op[place]
        return Parting(what="bytes", op=born, text=f"a block born at op {born} has {mine:,} and {theirs:,} bytes")
    return None


def _kind_equality() -> Callable[[OpKind, OpKind], bool]:
    """Equal in all fields; each pair is compared once."""
    known: dict[tuple[int, int], bool] = {}

    def equal(left: OpKind, right: OpKind) -> bool:
        key = id(left), id(right)
        if key not in known:
            known[key] = _fields(left) == _fields(right)
        return known[key]

    return equal


def _fields(kind: OpKind) -> tuple[object, ...]:
    parts = tuple(_fields(part) for part in kind.parts)
    arguments = dict(kind.arguments)
    return kind.name, kind.inputs, kind.outputs, arguments, kind.output_aliases, kind.mutates, parts
