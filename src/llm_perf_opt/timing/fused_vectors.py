"""Vector ops between two products as one kernel: what it is called, and the bytes that still cross its border."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.op import Kernel, KernelKind, OpRole
from llm_perf_opt.ops.table import bytes_read, op_role
from llm_perf_opt.timing.fusions import Fusion

_NORMS = frozenset({"rsqrt", "rms_norm", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm"})
_ACTIVATIONS = frozenset({"silu", "gelu", "relu", "sigmoid", "tanh", "mish", "hardswish", "leaky_relu", "elu"})


def vector_rule(kinds: Sequence[OpKind], following: KernelKind | None) -> Fusion:
    """The name of what is fused, by its ops and by the kernel behind it."""
    names = {packet_of(kind.name).partition(".")[2].rstrip("_") for kind in kinds}
    if following is KernelKind.ATTENTION:
        return Fusion.ROTARY
    if any(op_role(kind) is OpRole.CHOICE for kind in kinds):
        return Fusion.ROUTER
    if names & _NORMS:
        return Fusion.NORM
    return Fusion.ACTIVATION if names & _ACTIVATIONS else Fusion.VECTOR


class OutsideBytes:
    """What some ops read that others made, and what they make that others read: the rest never leaves one kernel."""

    def __init__(self, graph: CallGraph) -> None:
        assert graph.storages is not None
        self._ops, (self._inputs, self._outputs) = ops_of(graph), tensor_offsets(graph)
        self._kinds, self._storages = graph.op_kinds, graph.storages
        self._last_read = _last_reads(graph)

    def of(self, rows: Sequence[int], kernels: Sequence[Kernel]) -> int:
        """Bytes across the border of these ops; no op counts for more than its kernel has to move."""
        made: dict[int, int] = {}
        read: dict[int, int] = {}
        for row, kernel in zip(rows, kernels, strict=True):
            kind, most = self._kinds[self._ops.kind[row]], kernel.bytes_moved - kernel.avoidable_bytes
            inputs = self._ops.input_storages[self._inputs[row] : self._inputs[row + 1]]
            for storage, size in zip(inputs, bytes_read(kind), strict=True):
                if storage not in made:
                    read[storage] = max(read.get(storage, 0), min(size, most, self._size(storage)))
            outputs = self._ops.output_storages[self._outputs[row] : self._outputs[row + 1]]
            for storage, meta in zip(outputs, kind.outputs, strict=True):
                made[storage] = min(tensor_bytes(meta), most)
        end = rows[-1]
        kept = sum(size for storage, size in made.items() if storage < 0 or self._is_read_after(storage, end))
        return sum(read.values()) + kept

    def _size(self, storage: int) -> int:
        return self._storages.bytes[storage] if storage >= 0 else 2**62

    def _is_read_after(self, storage: int, row: int) -> bool:
        return self._last_read[storage] > row or self._storages.freed_op[storage] >= len(self._ops.kind)


def _last_reads(graph: CallGraph) -> array[int]:
    """Per storage the row of the last op that reads it; -1: none does."""
    assert graph.storages is not None
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    last = array("q", [-1]) * len(graph.storages.bytes)
    for row in range(len(ops.kind)):
        for storage in ops.input_storages[starts[row] : starts[row + 1]]:
            if storage >= 0:
                last[storage] = row
    return last
