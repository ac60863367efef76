"""Live memory of a step by kind: over time, at its peaks, and tensor by tensor at one moment."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of, path_pattern, tensor_offsets
from llm_perf_opt.core.callgraph.records import StorageColumns, TensorMeta
from llm_perf_opt.core.recorded_step import BACKWARD, FORWARD, LOSS, PHASES, RecordedTrainingStep
from llm_perf_opt.training.step_record import MemoryAtPeak, MemoryKind, MemoryPoint, TensorAlive

POINTS = 400  # of the curve over time, about
LARGEST = 60  # tensors that are listed at a peak
_WEIGHTS = ("parameter", "buffer")
_INPUTS = ("input", "external")
_STATE = "optimizer state"
_GIVEN = "input"
_SCRATCH = "scratch"


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The kind of every storage, and the bytes of each kind alive while each op ran."""

    step: RecordedTrainingStep
    kinds: tuple[MemoryKind, ...]
    by_kind: Mapping[MemoryKind, array[int]]
    total: array[int]

    def at(self, op: int) -> dict[MemoryKind, int]:
        """What was alive while an op ran."""
        return {kind: column[op] for kind, column in self.by_kind.items()}


def memory_of(step: RecordedTrainingStep) -> StepMemory:
    """Every storage gets one kind, and the live bytes of each kind are summed op by op."""
    storages = _storages_of(step.graph)
    kinds = tuple(_kinds(step, storages))
    changes = {kind: array("q", bytes(8 * (step.op_count + 1))) for kind in MemoryKind}
    for kind, size_bytes, born, freed in zip(kinds, storages.bytes, storages.born_op, storages.freed_op, strict=True):
        changes[kind][born] += size_bytes
        changes[kind][freed] -= size_bytes
    by_kind = {kind: array("q", accumulate(column))[: step.op_count] for kind, column in changes.items()}
    total = array("q", map(sum, zip(*by_kind.values(), strict=True)))
    return StepMemory(step, kinds, by_kind, total)


def _kinds(step: RecordedTrainingStep, storages: StorageColumns) -> Iterator[MemoryKind]:
    saved = SavedActivations(step)
    for row, (origin, born, freed) in enumerate(zip(storages.origin, storages.born_op, storages.freed_op, strict=True)):
        if origin in _WEIGHTS:
            yield MemoryKind.WEIGHTS
        elif row in step.gradients:
            yield MemoryKind.GRADIENTS
        elif row in step.optimizer_states:
            yield MemoryKind.OPTIMIZER_STATES
        elif origin in _INPUTS:
            yield MemoryKind.INPUTS
        elif origin == "activation" and saved.holds(born, freed):
            yield MemoryKind.SAVED_ACTIVATIONS
        else:
            yield MemoryKind.WORKING


class SavedActivations:
    """Which blocks of memory are activations that a backward uses.

    They are made in a forward or a loss and are alive when the backward after it begins; or they are made in a forward
    that a backward runs again, and are alive when that ends.
    """

    def __init__(self, step: RecordedTrainingStep) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        ranges = list(step.ranges())
        for index, (phase, rows) in enumerate(ranges):
            following = [later.start for name, later in ranges[index + 1 :] if name == BACKWARD]
            if phase in (FORWARD, LOSS) and following:
                self._starts.append(rows.start)
                self._ends.append(following[0])
            elif phase == BACKWARD:
                again = [region for region in step.recomputed if region.start in rows]
                self._starts += [region.start for region in again]
                self._ends += [region.stop for region in again]

    def holds(self, born: int, freed: int) -> bool:
        """Whether memory with this life is saved for a backward."""
        place = bisect_right(self._starts, born) - 1
        return place >= 0 and born < self._ends[place] < freed


def peaks(memory: StepMemory) -> dict[str, MemoryAtPeak]:
    """The highest moment of each phase."""
    highest: dict[str, int] = {}
    for phase, rows in memory.step.ranges():
        top = max(rows, key=memory.total.__getitem__)
        if phase not in highest or memory.total[top] > memory.total[highest[phase]]:
            highest[phase] = top
    return {phase: _moment(memory, phase, highest[phase]) for phase in PHASES if phase in highest}


def _moment(memory: StepMemory, phase: str, op: int) -> MemoryAtPeak:
    graph = memory.step.graph
    ops = ops_of(graph)
    return MemoryAtPeak(
        peak_bytes=memory.total[op],
        by_kind=memory.at(op),
        phase=phase,
        op=graph.op_kinds[ops.kind[op]].name,
        module=_module_of(graph, op),
        tensors=tensors_alive(memory, op),
    )


def tensors_alive(memory: StepMemory, op: int) -> tuple[TensorAlive, ...]:
    """Everything that was alive while an op ran, in groups, the largest first."""
    graph = memory.step.graph
    storages = _storages_of(graph)
    named = {
        parameter.storage: (
            path_pattern(parameter.name),
            path_pattern(parameter.name.rpartition(".")[0]),
            parameter.meta,
        )
        for parameter in graph.parameters
        if parameter.storage >= 0
    }
    writers = _Writers(graph)
    groups: Counter[tuple[str, str, TensorMeta | None, MemoryKind]] = Counter()
    sizes: Counter[tuple[str, str, TensorMeta | None, MemoryKind]] = Counter()
    for row, (born, freed) in enumerate(zip(storages.born_op, storages.freed_op, strict=True)):
        if not born <= op < freed:
            continue
        name, module, meta = named.get(row) or writers.of(row, memory.kinds[row])
        groups[name, module, meta, memory.kinds[row]] += 1
        sizes[name, module, meta, memory.kinds[row]] += storages.bytes[row]
    return tuple(
        TensorAlive(
            name=group[0],
            module=group[1],
            shape=() if group[2] is None else group[2].shape,
            dtype="" if group[2] is None else group[2].dtype,
            bytes=size,
            count=groups[group],
            kind=group[3],
        )
        for group, size in sizes.most_common(LARGEST)
    )


class _Writers:
    """What made a storage: the op, its module, and the tensor that it wrote."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph, self._storages = graph, _storages_of(graph)
        self._starts = tensor_offsets(graph)[1]

    def of(self, row: int, kind: MemoryKind) -> tuple[str, str, TensorMeta | None]:
        if self._storages.origin[row] in _INPUTS:
            return (_STATE if kind is MemoryKind.OPTIMIZER_STATES else _GIVEN), "", None
        ops, born = ops_of(self._graph), self._storages.born_op[row]
        op_kind = self._graph.op_kinds[ops.kind[born]]
        module = path_pattern(_module_of(self._graph, born))
        written = ops.output_storages[self._starts[born] : self._starts[born + 1]]
        meta = next((meta for meta, made in zip(op_kind.outputs, written, strict=True) if made == row), None)
        return (_SCRATCH if meta is None else op_kind.name.removeprefix("aten.")), module, meta


def _module_of(graph: CallGraph, op: int) -> str:
    call = ops_of(graph).call[op]
    return graph.paths[calls_of(graph).path[call]] if call >= 0 else ""


def curve(memory: StepMemory, limit: int = POINTS) -> tuple[MemoryPoint, ...]:
    """Memory over time as at most about `limit` points: of each stretch of ops its highest and its lowest moment."""
    points: list[MemoryPoint] = []
    for phase, rows in memory.step.ranges():
        size = max(1, -(-memory.step.op_count // (limit // 2)))
        for start in range(rows.start, rows.stop, size):
            stretch = range(start, min(start + size, rows.stop))
            points += [
                MemoryPoint(op_index=op, phase=phase, by_kind=memory.at(op)) for op in _extremes(memory.total, stretch)
            ]
    return tuple(points)


def _extremes(live: Sequence[int], rows: range) -> list[int]:
    return sorted({max(rows, key=live.__getitem__), min(rows, key=live.__getitem__)})


def _storages_of(graph: CallGraph) -> StorageColumns:
    assert graph.storages is not None, "a recorded step follows memory"
    return graph.storages
