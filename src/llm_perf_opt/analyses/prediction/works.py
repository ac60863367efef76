"""The work of each stage of a trace as a device sees it: FLOPs by dtype, bytes that must be read, kernels to launch."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from llm_perf_opt.analyses.prediction.kernels import Kernel, kernels_of
from llm_perf_opt.analyses.pricing import memory, price
from llm_perf_opt.analyses.pricing.op_cost import Formula
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.analyses.pricing.price import formula_table
from llm_perf_opt.callgraph.dtypes import tensor_bytes
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import (
    calls_of,
    count_kinds,
    count_kinds_by_stage,
    ops_of,
    stage_names,
    stage_of_ops,
    tensor_offsets,
)
from llm_perf_opt.callgraph.records import OpKind

_OLD = frozenset({"parameter", "buffer", "input", "external"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One stage of a trace.

    `must_read_bytes` are those of weights, caches and inputs that existed before the phase and are read in the stage,
    once in each of its `forwards` however often they are used; of a table that is looked into, only what the lookup
    takes. None: the trace follows no memory. `skippable_flops` are part of `flops` and hidden by a causal mask.
    `unpriced_ops` are in no sum.
    """

    name: str
    ops: int
    launches: int
    flops: int
    flops_by_dtype: Mapping[str, int]
    skippable_flops: int
    skippable_by_dtype: Mapping[str, int]
    bytes_moved: int
    must_read_bytes: int | None
    forwards: int
    kernels: Mapping[Kernel, int]
    unpriced_ops: int

    @property
    def required_by_dtype(self) -> dict[str, int]:
        """FLOPs that no implementation can leave out."""
        return {dtype: flops - self.skippable_by_dtype.get(dtype, 0) for dtype, flops in self.flops_by_dtype.items()}


@dataclass(frozen=True, slots=True)
class Reads:
    """Bytes read, each storage once per forward, and the forwards that read anything."""

    size_bytes: int
    forwards: int


def stage_works(graph: CallGraph) -> tuple[StageWork, ...]:
    """The stages of one phase that ran anything, in order."""
    by_stage = count_kinds_by_stage(graph)
    by_stage[graph.phase] = Counter(by_stage[graph.phase]) - Counter(count_kinds(graph, preparation(graph)))
    reads = _reads_by_stage(graph)
    return tuple(work_of(name, counts, reads.get(name)) for name, counts in by_stage.items() if counts)


def preparation(graph: CallGraph) -> range:
    """Rows of the ops before the first module call that only fill memory: a cache of zeros, a token to begin with.

    They stand for what an earlier phase left behind, so they are no work of this one, and what they fill was there.
    """
    end = min(calls_of(graph).first_op, default=0)
    kinds = ops_of(graph).kind
    for row in range(end):
        if kernels_of(graph.op_kinds[kinds[row]]) and _formula(graph.op_kinds[kinds[row]]) is not memory.fill:
            return range(row)
    return range(end)


def work_of(name: str, counts: Mapping[OpKind, int], reads: Reads | None = None) -> StageWork:
    """Any set of ops as one piece of work; without `reads` nothing is known of the bytes that must be read."""
    kernels: Counter[Kernel] = Counter()
    for kind, count in counts.items():
        for kernel in kernels_of(kind):
            kernels[kernel] += count
    flops: Counter[str] = Counter()
    skippable: Counter[str] = Counter()
    for kernel, count in kernels.items():
        flops[kernel.dtype] += kernel.flops * count
        skippable[kernel.dtype] += kernel.skippable_flops * count
    costs = {kind: price(kind) for kind in counts}
    return StageWork(
        name=name,
        ops=sum(counts.values()),
        launches=kernels.total(),
        flops=flops.total(),
        flops_by_dtype=dict(+flops),
        skippable_flops=skippable.total(),
        skippable_by_dtype=dict(+skippable),
        bytes_moved=sum(cost.bytes_moved * counts[kind] for kind, cost in costs.items() if cost is not None),
        must_read_bytes=None if reads is None else reads.size_bytes,
        forwards=0 if reads is None else reads.forwards,
        kernels=kernels,
        unpriced_ops=sum(counts[kind] for kind, cost in costs.items() if cost is None),
    )


def _reads_by_stage(graph: CallGraph) -> dict[str, Reads]:
    """Per stage: of each storage that was there before, the most that one op of a forward reads of it, added up.

    The largest single read and not the sum of reads, because two ops may read the same part.
    """
    if graph.storages is None:
        return {}
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    held = _held_before(graph)
    reads = [_bytes_read(kind) for kind in graph.op_kinds]
    forwards = _forward_of_ops(graph)
    most: dict[tuple[int, int, int], int] = {}
    for row, (stage, kind) in enumerate(zip(stage_of_ops(graph), ops.kind, strict=True)):
        for place, read in enumerate(reads[kind]):
            storage = ops.input_storages[starts[row] + place]
            if read and storage in held:
                key = (stage, forwards[row], storage)
                most[key] = max(most.get(key, 0), min(read, graph.storages.bytes[storage]))
    names = stage_names(graph)
    return {
        name: Reads(
            sum(read for (stage, _, _), read in most.items() if stage == row),
            len({forward for stage, forward, _ in most if stage == row}),
        )
        for row, name in enumerate(names)
    }


def _held_before(graph: CallGraph) -> frozenset[int]:
    """Storages that hold something when the phase begins."""
    assert graph.storages is not None
    prepared = preparation(graph).stop
    origins, born = graph.storages.origin, graph.storages.born_op
    return frozenset(storage for storage in range(len(born)) if origins[storage] in _OLD or born[storage] < prepared)


def _forward_of_ops(graph: CallGraph) -> array[int]:
    """Per op, the number of the outermost module call it ran in or after."""
    calls, ops = calls_of(graph), len(ops_of(graph).kind)
    begins = {calls.first_op[call] for call, parent in enumerate(calls.parent) if parent < 0}
    return array("q", accumulate(int(row in begins) for row in range(ops)))


def _bytes_read(kind: OpKind) -> tuple[int, ...]:
    """Per input: how much of it the op reads at least. What is overwritten need not be read."""
    if not kernels_of(kind):
        return (0,) * len(kind.inputs)
    sizes = [tensor_bytes(meta) for meta in kind.inputs]
    formula = _formula(kind)
    if formula in (memory.gather, memory.embedding_bag):  # only the rows that the indices name
        sizes[0] = min(sizes[0], sum(map(tensor_bytes, kind.outputs)))
    elif sizes and (kind.mutates or formula in (memory.fill, memory.scatter)):
        sizes[0] = 0
    return tuple(sizes)


def _formula(kind: OpKind) -> Formula | None:
    return formula_table().get(packet_of(kind.name))
