"""Which tensors lie scattered in memory: neighbours along their last dimension are far apart.

A convolution leaves its channels first; read with the channels last, they are scattered. Elementwise ops hand the
layout of their first operand on to their result, so that a whole residual stream can stay scattered: every sum with a
contiguous tensor then walks one of the two against the grain, and every norm copies its input first. A trace holds no
strides; they are followed here from the views that move the last dimension.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind

Scattered = frozenset[int]  # places of an op's inputs
_REORDERING = frozenset({"aten.permute", "aten.transpose", "aten.t", "aten.movedim", "aten.swapaxes"})
_KEEPING = frozenset(
    {
        *(f"aten.{name}" for name in ("add", "sub", "mul", "div", "pow", "neg", "sqrt", "rsqrt")),
        *(f"aten.{name}" for name in ("to", "_to_copy", "gelu", "silu", "sigmoid", "relu", "tanh", "clone")),
        *(f"aten.{name}" for name in ("conv2d", "convolution", "_upsample_bicubic2d_aa", "upsample_bicubic2d")),
    }
)


def count_variants_by_stage(graph: CallGraph) -> dict[str, Counter[tuple[OpKind, Scattered]]]:
    """Stage -> how often each kind ran with which of its inputs scattered."""
    names = stage_names(graph)
    kinds = map(graph.op_kinds.__getitem__, ops_of(graph).kind)
    found: dict[str, Counter[tuple[OpKind, Scattered]]] = {name: Counter() for name in names}
    for stage, kind, scattered in zip(stage_of_ops(graph), kinds, scattered_inputs(graph), strict=True):
        found[names[stage]][kind, scattered] += 1
    return found


def scattered_inputs(graph: CallGraph) -> Iterator[Scattered]:
    """Per op, the places of its scattered inputs; a trace that follows no memory has none."""
    ops = ops_of(graph)
    inputs_from, outputs_from = tensor_offsets(graph)
    is_scattered: dict[tuple[int, tuple[int, ...]], bool] = {}  # storage and the shape it is seen in
    for op, row in enumerate(ops.kind):
        kind = graph.op_kinds[row]
        inputs = ops.input_storages[inputs_from[op] : inputs_from[op + 1]]
        outputs = ops.output_storages[outputs_from[op] : outputs_from[op + 1]]
        seen = [
            is_scattered.get((storage, meta.shape), False) for storage, meta in zip(inputs, kind.inputs, strict=False)
        ]
        yield frozenset(place for place, scattered in enumerate(seen) if scattered)
        for place, (storage, meta) in enumerate(zip(outputs, kind.outputs, strict=False)):
            is_scattered[storage, meta.shape] = _result(kind, place, seen)


def _result(kind: OpKind, place: int, seen: list[bool]) -> bool:
    """Whether an output lies scattered, from whether the inputs do."""
    if not seen:
        return False
    packet = packet_of(kind.name)
    alias = kind.output_aliases[place] if place < len(kind.output_aliases) else -1
    if alias >= 0:
        moved = packet in _REORDERING and kind.inputs[alias].shape[-1:] != kind.outputs[place].shape[-1:]
        return seen[alias] != moved
    if packet not in _KEEPING:
        return False
    return seen[_leading(kind)]


def _leading(kind: OpKind) -> int:
    """The first operand as large as the result; what is broadcast has no say in the layout."""
    for place, meta in enumerate(kind.inputs):
        if meta.shape == kind.outputs[0].shape:
            return place
    return 0
