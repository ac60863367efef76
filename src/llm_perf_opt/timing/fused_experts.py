"""The routed experts of a layer as one grouped kernel, whichever way the code runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_in_call, ops_of, tensor_offsets
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.costs.necessary.anatomy import Anatomy
from llm_perf_opt.costs.necessary.expert_blocks import ExpertBlock, routing_policy_of
from llm_perf_opt.ops.cost import elements
from llm_perf_opt.ops.kernel_shape import ExpertsShape, ProductShape
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.ops.table import kernels_of, op_family
from llm_perf_opt.timing.fusions import FusedOps, Fusion, is_vector_work


def fused_experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """Each block with the vector ops that sort, activate and add up its rows."""
    for block in anatomy.experts:
        kernels = [_kernels(graph, row) for row in block.rows]
        if any(len(some) != 1 for some in kernels):
            continue
        between = _vector_rows(graph, block)
        kernel = _as_one(graph, block, [some[0] for some in kernels], between)
        rows = tuple(sorted({*block.rows, *between}))
        yield FusedOps(rule=Fusion.EXPERTS, rows=rows, kernels=(kernel,))


def _kernels(graph: CallGraph, row: int) -> tuple[Kernel, ...]:
    return kernels_of(graph.op_kinds[ops_of(graph).kind[row]])


def _vector_rows(graph: CallGraph, block: ExpertBlock) -> list[int]:
    """Rows of the vector ops in the call of the experts' module; of a list of modules, those between its products."""
    calls, call = calls_of(graph), ops_of(graph).call[block.row]
    while call >= 0 and graph.paths[calls.path[call]] != block.path:
        call = calls.parent[call]
    rows = range(min(block.rows), max(block.rows) + 1) if call < 0 else ops_in_call(graph, call)
    mine = set(block.rows)
    return [row for row in rows if row not in mine and is_vector_work(_kernels(graph, row))]


def _as_one(graph: CallGraph, block: ExpertBlock, products: Sequence[Kernel], between: Sequence[int]) -> Kernel:
    """All products on the rows that were routed; an engine keeps what the vector ops move in the kernel."""
    flops = min(block.flops, block.whole_row_flops)
    read = 1.0
    if flops < block.flops:  # the code runs experts on tokens that did not choose them
        read = min(1.0, block.distinct(routing_policy_of(graph), block.made_tokens) / max(block.touched, 1))
    share = flops / max(block.flops, 1)
    moved = round(sum(kernel.bytes_moved for kernel in products) * read)
    avoidable = sum(kernel.bytes_moved for row in between for kernel in _kernels(graph, row))
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=products[0].dtype,
        flops=flops,
        skippable_flops=0,
        bytes_moved=moved + avoidable,
        avoidable_bytes=avoidable,
        rows=max(1, round(sum(kernel.rows for kernel in products) * share) // len(products)),
        weights=products[0].weights,
        shape=_shape(graph, block),
    )


def _shape(graph: CallGraph, block: ExpertBlock) -> ExpertsShape | None:
    """The block as tables list it, over all ranks of its plan; None: a product does not show its sizes."""
    whole = _kernels(graph, block.rows[0])[0].shape
    if isinstance(whole, ExpertsShape):  # an engine's op of all experts, which says so itself
        return whole
    hidden, inner = _depth(graph, block.rows[0]), _depth(graph, block.rows[-1])
    if hidden is None or inner is None:
        return None
    ranks = tensor_ranks(graph, block)
    return ExpertsShape(
        tokens=max(1, -(-block.made_tokens * block.ranks // block.ranks_alike)),
        hidden=hidden,
        inner=inner * ranks,
        experts=block.experts * block.ranks,
        chosen=block.chosen,
        tensor_ranks=ranks,
        expert_ranks=block.ranks,
        weight_format=_weight_format(graph, block),
        is_gated=is_gated(block, hidden, inner),
    )


def is_gated(block: ExpertBlock, hidden: int, inner: int) -> bool:
    """Whether an expert has a gate next to up and down; `inner` is that of this rank."""
    return block.matrix_elements_each > 2 * hidden * inner


def tensor_ranks(graph: CallGraph, block: ExpertBlock) -> int:
    """How many ranks share each expert of the block."""
    if block.ranks > 1 or _is_whole(graph, block):
        return 1
    return (plan_in(graph.deployment) or ParallelPlan()).tp


def _depth(graph: CallGraph, row: int) -> int | None:
    """The length that a product sums over: the width of what goes into an expert, or into its last product."""
    kind = graph.op_kinds[ops_of(graph).kind[row]]
    if op_family(kind.name) is WorkFamily.GROUPED:
        return kind.inputs[0].shape[-1]
    shape = kernels_of(kind)[0].shape
    return shape.depth if isinstance(shape, ProductShape) else None


def _is_whole(graph: CallGraph, block: ExpertBlock) -> bool:
    """Whether every rank of a plan holds these experts as a single device would."""
    whole = replicated_in(graph.deployment)
    stem = layer_pattern(f"{block.path}.")
    return whole is not None and any(name.startswith(stem) for name in whole)


def _weight_format(graph: CallGraph, block: ExpertBlock) -> str:
    """The stored format of the largest operand that is a weight of the block."""
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    row = block.rows[0]
    kind = graph.op_kinds[ops.kind[row]]
    used = zip(kind.inputs, ops.input_storages[starts[row] : starts[row + 1]], strict=True)
    weights = [meta for meta, storage in used if storage in block.storages]
    return max(weights, key=elements).dtype if weights else block.dtype
