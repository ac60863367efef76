"""The sequence of events is possible: calls nest, ops run in the innermost call, memory is used while it lives."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, repeat
from operator import gt, le, lt

from llm_perf_opt.core.callgraph.records import CallColumns, OpColumns, RunDetail, StorageColumns


def call_problems(graph: RunDetail) -> Iterator[str]:
    """Every impossibility in the columns of a graph whose columns fit together."""
    if graph.calls is not None:
        walk = _CallWalk(graph.calls, graph.paths)
        impossible = walk.replay(op_count=len(graph.ops.kind) if graph.ops is not None else 0)
        if impossible is not None:
            yield impossible
        elif graph.ops is not None:
            yield from _op_call_problems(graph.ops.call, walk.call_of_op)
        if graph.calls.started_ns:
            yield from _time_problems(graph.calls)
    if graph.storages is not None:
        for storage, (born, freed) in enumerate(zip(graph.storages.born_op, graph.storages.freed_op, strict=True)):
            if born > freed:
                yield f"storage {storage} is freed before op {freed} and born at op {born}"
        if graph.ops is not None:
            yield from _op_use_problems(graph, graph.ops, graph.storages)
        if graph.calls is not None:
            yield from _call_use_problems(graph.calls, graph.storages)


class _CallWalk:
    """Replays the calls in the order of entry; `call_of_op` becomes the innermost call around every op."""

    def __init__(self, calls: CallColumns, paths: tuple[str, ...]) -> None:
        self.call_of_op = array("q")
        self._calls = calls
        self._paths = paths
        self._open: list[int] = []

    def replay(self, op_count: int) -> str | None:
        """The first thing that cannot have happened, or None."""
        for call, parent in enumerate(self._calls.parent):
            problem = self._close_down_to(parent)
            if problem is None and parent >= 0 and not self._open:
                problem = f"{self._name(call)} was entered under call {parent}, which had already returned"
            if problem is None and not self._advance(self._calls.first_op[call]):
                problem = f"{self._name(call)} begins at op {self._calls.first_op[call]}, inside the call before it"
            if problem is not None:
                return problem
            self._open.append(call)
        problem = self._close_down_to(-1)
        if problem is None:
            self._advance(op_count)
        return problem

    def _close_down_to(self, parent: int) -> str | None:
        while self._open and self._open[-1] != parent:
            call = self._open[-1]
            if not self._advance(self._calls.end_op[call]):
                return f"{self._name(call)} ends at op {self._calls.end_op[call]}, before a call inside it does"
            self._open.pop()
        return None

    def _advance(self, clock: int) -> bool:
        passed = clock - len(self.call_of_op)
        if passed > 0:
            self.call_of_op.extend(array("q", [self._open[-1] if self._open else -1]) * passed)
        return passed >= 0

    def _name(self, call: int) -> str:
        return f"call {call} of {self._paths[self._calls.path[call]]!r}"


def _time_problems(calls: CallColumns) -> Iterator[str]:
    """A call ends after it began, lies within its caller, and begins no earlier than the call before it."""
    started, ended = calls.started_ns, calls.ended_ns
    for call, parent in enumerate(calls.parent):
        if ended[call] < started[call]:
            yield f"call {call} ends {started[call] - ended[call]} ns before it begins"
        if call and started[call] < started[call - 1]:
            yield f"call {call} begins before call {call - 1}, which was entered first"
        if parent >= 0 and ended[call] > ended[parent]:
            yield f"call {call} ends {ended[call] - ended[parent]} ns after its caller, call {parent}"


def _op_call_problems(recorded: array[int], expected: array[int]) -> Iterator[str]:
    if recorded != expected:
        op = next(op for op, (one, other) in enumerate(zip(recorded, expected, strict=True)) if one != other)
        yield f"op {op} is said to run in call {recorded[op]}, the innermost call around it is {expected[op]}"


def _op_use_problems(graph: RunDetail, ops: OpColumns, storages: StorageColumns) -> Iterator[str]:
    for side, used, arity in (
        ("input", ops.input_storages, [len(kind.inputs) for kind in graph.op_kinds]),
        ("output", ops.output_storages, [len(kind.outputs) for kind in graph.op_kinds]),
    ):

        def op_of_use(arity: list[int] = arity) -> Iterator[int]:
            return chain.from_iterable(map(repeat, count(), map(arity.__getitem__, ops.kind)))

        for storage, op in _first_outside(used, storages, op_of_use, is_dead=le):
            yield f"op {op} has storage {storage} as {side}, {_life(storages, storage)}"


def _call_use_problems(calls: CallColumns, storages: StorageColumns) -> Iterator[str]:
    for side, used, counts, clocks in (
        ("input", calls.input_storages, calls.input_count, calls.first_op),
        ("output", calls.output_storages, calls.output_count, calls.end_op),
    ):

        def clock_of_use(counts: array[int] = counts, clocks: array[int] = clocks) -> Iterator[int]:
            return chain.from_iterable(map(repeat, clocks, counts))

        # A call begins and ends between two ops, so memory that is freed before the next op is still there.
        for storage, op in _first_outside(used, storages, clock_of_use, is_dead=lt):
            yield f"a call has storage {storage} as {side} at op {op}, {_life(storages, storage)}"


def _first_outside(
    used: array[int],
    storages: StorageColumns,
    clocks: Callable[[], Iterable[int]],
    *,
    is_dead: Callable[[int, int], bool],
) -> Iterator[tuple[int, int]]:
    """The first use of a storage before its birth, and the first after its death; C loops over millions of uses."""
    if any(map(gt, map(storages.born_op.__getitem__, used), clocks())):
        yield next((row, at) for row, at in zip(used, clocks(), strict=True) if storages.born_op[row] > at)
    if any(map(is_dead, map(storages.freed_op.__getitem__, used), clocks())):
        yield next((row, at) for row, at in zip(used, clocks(), strict=True) if is_dead(storages.freed_op[row], at))


def _life(storages: StorageColumns, storage: int) -> str:
    return f"which lives from op {storages.born_op[storage]} up to op {storages.freed_op[storage]}"
