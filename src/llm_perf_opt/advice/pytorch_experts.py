"""Routed experts as transformers runs them with `grouped_mm`: two grouped matmuls and what sorts, gathers and adds up.

An engine has all of it in one kernel. Code that stays in PyTorch launches these, whatever the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.engine_kernels import engine_rules
from llm_perf_opt.timing.fusions import Fusion

_Shape = tuple[int, ...]
_DEVICE = "cuda:0"
_FUSIBLE = frozenset({"floor_divide", "index", "silu", "mul", "arange", "sum", "to"})  # by a compiler, with a neighbour
_COMPILED_VECTORS = 3  # what is left of them: before, between and behind the two matmuls


def in_place_of_engines(
    graph: CallGraph, kernels: dict[str, Counter[Kernel]], *, is_compiled: bool
) -> dict[str, Counter[Kernel]]:
    """Per stage the kernels with each layer of experts as PyTorch runs it; a layer of unknown sizes stays."""
    names, stages = stage_names(graph), stage_of_ops(graph)
    touched = {row: block.touched for block in anatomy_of(graph).experts for row in block.rows}
    for fused in engine_rules(graph):
        if fused.rule is not Fusion.EXPERTS or not isinstance(shape := fused.kernels[0].shape, ExpertsShape):
            continue
        if shape.tensor_ranks > 1 or shape.expert_ranks > 1:
            continue
        used = max(touched.get(row, 0) for row in fused.rows)
        counts = kernels[names[stages[fused.rows[0]]]]
        if counts[fused.kernels[0]] == 0:  # before the run: weights that are prepared once
            continue
        counts[fused.kernels[0]] -= 1
        counts.update(_kernels(shape, fused.kernels[0].dtype, used, is_compiled, _scores(graph, fused.rows)))
    return {stage: +counts for stage, counts in kernels.items()}


def _scores(graph: CallGraph, rows: tuple[int, ...]) -> str:
    """The type of the router's scores: that in which the code multiplies them with what its experts made."""
    kinds = [graph.op_kinds[ops_of(graph).kind[row]] for row in rows]
    scaled = [kind.outputs[0].dtype for kind in kinds if packet_of(kind.name) == "aten.mul"]
    return "float32" if "float32" in scaled or not scaled else scaled[-1]


@lru_cache(maxsize=256)
def _kernels(shape: ExpertsShape, dtype: str, used: int, is_compiled: bool, scores: str) -> tuple[Kernel, ...]:
    found = [(name, kernel) for name, kind in _ops(shape, dtype, used, scores) for kernel in kernels_of(kind)]
    if not is_compiled:
        return tuple(kernel for _, kernel in found)
    fusible = [kernel for name, kernel in found if name in _FUSIBLE and kernel.kind is KernelKind.VECTOR]
    largest = sorted(fusible, key=lambda kernel: -kernel.bytes_moved)[:_COMPILED_VECTORS]
    return (*(kernel for _, kernel in found if kernel not in fusible), *largest)


def _ops(shape: ExpertsShape, dtype: str, used: int, scores: str) -> Iterator[tuple[str, OpKind]]:
    """In the order of `grouped_mm_experts_forward`; a pair is a token and one of its experts."""
    pairs, hidden, inner = shape.tokens * shape.chosen, shape.hidden, shape.inner
    wide = 2 * inner if shape.is_gated else inner
    picks, count, weights = ((pairs,), "int64"), ((shape.experts,), "int32"), ((pairs,), scores)
    yield _op("sort", [picks], [picks, picks])
    yield _op("floor_divide", [picks], [picks], "default", other=shape.chosen)
    yield _op("index", [((shape.tokens, hidden), dtype), picks], [((pairs, hidden), dtype)], "Tensor")
    yield _op("index", [weights, picks], [weights], "Tensor")
    yield _op("to", [picks], [((pairs,), "int32")], "dtype")
    yield _op("histc", [((pairs,), "int32")], [count], bins=shape.experts, min=0, max=shape.experts - 1)
    yield _op("cumsum", [count], [count], dim=0, dtype="int32")
    yield _grouped(pairs, (shape.experts, hidden, wide), shape, dtype, used)
    half = ((pairs, inner), dtype)
    yield _op("silu", [half], [half])
    if shape.is_gated:
        yield _op("mul", [half, half], [half], "Tensor")
    yield _grouped(pairs, (shape.experts, inner, hidden), shape, dtype, used)
    out = ((pairs, hidden), scores)
    yield _op("mul", [((pairs, hidden), dtype), ((pairs, 1), scores)], [out], "Tensor")
    yield _op("arange", [], [picks], end=pairs)
    yield _op("index_put_", [picks, picks, picks], [picks])
    yield _op("index", [out, picks], [out], "Tensor")
    yield _op(
        "sum",
        [((shape.tokens, shape.chosen, hidden), scores)],
        [((shape.tokens, hidden), scores)],
        "dim_IntList",
        dim=[1],
    )
    if scores != dtype:
        yield _op("to", [((shape.tokens, hidden), scores)], [((shape.tokens, hidden), dtype)], "dtype")


def _grouped(rows: int, weight: _Shape, shape: ExpertsShape, dtype: str, used: int) -> tuple[str, OpKind]:
    inputs = [((rows, weight[1]), dtype), (weight, shape.weight_format), ((weight[0],), "int32")]
    return _op("_grouped_mm", inputs, [((rows, weight[2]), dtype)], groups_used=used)


def _op(
    name: str,
    inputs: list[tuple[_Shape, str]],
    outputs: list[tuple[_Shape, str]],
    overload: str = "default",
    **arguments: Any,
) -> tuple[str, OpKind]:
    metas = [tuple(TensorMeta(size, dtype, _DEVICE) for size, dtype in side) for side in (inputs, outputs)]
    kind = OpKind(
        name=f"aten.{name}.{overload}",
        inputs=metas[0],
        outputs=metas[1],
        arguments=arguments,
        mutates=name.endswith("_"),
        output_aliases=(0,) if name.endswith("_") else (),
    )
    return name, kind
