"""Attention and routed experts as an engine runs them: each is one kernel.

Attention runs on the pairs that a mask leaves visible, and reads keys where they are cached.

Code may write scores out, copy keys for every query head, append to a cache by copying it, or expand latent vectors to
keys and values. An engine does none of these. The routed experts of a layer are one grouped kernel, whichever way the
code runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_in_call, ops_of, tensor_offsets
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightMatmul
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.expert_blocks import ExpertBlock, is_replicated, routing_policy_of
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.cost import elements, operand, packet_of
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, MatmulShape
from llm_perf_opt.ops.op import Kernel, KernelKind, OpRole
from llm_perf_opt.ops.table import kernels_of, op_family, op_role
from llm_perf_opt.timing.fusions import (
    FusedOps,
    Fusion,
    fewer_rows,
    is_vector_work,
    latent_cache_bytes,
    single_kernel,
)

_Matmuls = Mapping[int, list[WeightMatmul]]  # module call -> the matmuls that its own modules run

_COPIES = frozenset(f"aten.{name}" for name in ("reshape", "clone", "contiguous", "repeat", "repeat_interleave"))


def fused_attention(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """Every attention, and what the code does for it that an engine does not."""
    contexts, matmuls = contexts_of(graph, anatomy), _matmuls_by_caller(graph, anatomy)
    for site in anatomy.attentions:
        kernel = _kernel(graph, site, matmuls, contexts.get(anatomy.forward_of_ops[site.row]))
        if kernel is not None:
            rows = (*_written_between(graph, site), *site.rows)
            yield FusedOps(rule=Fusion.ATTENTION, rows=tuple(sorted(rows)), kernels=(kernel,))
            if is_absorbed(site):
                yield from _absorbed(graph, site, matmuls)
    yield from _copies(graph, anatomy)
    yield from _appends(graph, anatomy)


def is_absorbed(site: AttentionSite) -> bool:
    """Whether attention on latent vectors is cheaper than expanding them first: a step on a long cache."""
    if site.latent is None or site.keys <= site.queries:
        return False
    pairs, latent = site.span.pairs(site.queries, site.keys), site.latent
    return latent.macs(pairs, site.lanes, site.keys - site.queries) == pairs * site.lanes * (
        2 * latent.rank + latent.rope
    )


def _matmuls_by_caller(graph: CallGraph, anatomy: Anatomy) -> _Matmuls:
    ops, calls = ops_of(graph), calls_of(graph)
    by_call: dict[int, list[WeightMatmul]] = {}
    for matmul in anatomy.matmuls:
        call = ops.call[matmul.row]
        if call >= 0:
            by_call.setdefault(calls.parent[call], []).append(matmul)
    return by_call


def _kernel(graph: CallGraph, site: AttentionSite, matmuls: _Matmuls, context: int | None) -> Kernel | None:
    """One launch; None: the op launches several, or scores are not laid out by head, or by sequence and head."""
    first, last = (graph.op_kinds[ops_of(graph).kind[row]] for row in (site.rows[0], site.rows[-1]))
    # A matmul may copy an operand first, which a kernel that keeps its scores reads where it lies.
    is_written = len(site.rows) > 1
    kernels = [kernel for kernel in kernels_of(last) if not (is_written and kernel.is_helper)]
    if len(kernels) != 1 or (is_written and len(first.outputs[0].shape) not in (3, 4)):
        return None
    every_position = replace(site, is_tail=False)  # an engine runs the last layer on every position
    shape = _written_shape(site, first) if is_written else kernels[0].shape
    if isinstance(shape, AttentionShape):
        shape = _engine_shape(site, shape, matmuls)
    flops = every_position.necessary_flops(context)
    if len(site.rows) == 1:
        base, key, value = (
            kernels[0],
            *(operand(last, place, name, name[0]) for place, name in ((1, "key"), (2, "value"))),
        )
        moved = base.bytes_moved
    else:
        key, value = first.inputs[1], last.inputs[1]
        moved = sum(map(tensor_bytes, (first.inputs[0], key, value, last.outputs[0])))
        base = replace(kernels[0], kind=KernelKind.ATTENTION, rows=0, weights=0, queries=site.queries)
        base = replace(base, sequences=_sequences_and_heads(first)[0])
    moved = min(moved, _engine_bytes(site, shape, moved, key, value))
    # Scores that the code writes to memory stay on the chip in a fused kernel: these bytes are avoidable.
    written = 0 if len(site.rows) == 1 else max(0, _bytes_as_written(graph, site) - moved)
    return replace(
        base,
        flops=flops,
        skippable_flops=0,
        bytes_moved=moved + written,
        avoidable_bytes=written,
        shape=shape,
    )


def _bytes_as_written(graph: CallGraph, site: AttentionSite) -> int:
    """Of scores that go through memory: both matmuls, and everything between them."""
    kinds = ops_of(graph).kind
    rows = (*site.rows, *_written_between(graph, site))
    return sum(kernel.bytes_moved for row in rows for kernel in kernels_of(graph.op_kinds[kinds[row]]))


def _written_shape(site: AttentionSite, scores: OpKind) -> AttentionShape:
    sequences, heads = _sequences_and_heads(scores)
    return AttentionShape(
        sequences=sequences,
        queries=site.queries,
        keys=site.keys,
        heads=heads,
        key_heads=heads,
        width=site.qk_width,
        value_width=site.v_width,
        is_causal=site.span.is_causal,
        cache_format=scores.inputs[1].dtype,
    )


def _sequences_and_heads(scores: OpKind) -> tuple[int, int]:
    """Of scores with one axis for both, the heads of all sequences: each has queries and keys of its own."""
    shape = scores.outputs[0].shape
    return (shape[0], shape[1]) if len(shape) == 4 else (1, shape[0])


def _engine_shape(site: AttentionSite, shape: AttentionShape, matmuls: _Matmuls) -> AttentionShape:
    """As tables list it: key heads as the cache has them, the window that queries see, latent vectors."""
    limits = (site.span.window, site.span.chunk, site.span.chosen)
    window = min((limit for limit in limits if limit is not None), default=None)
    shape = replace(shape, is_causal=site.span.is_causal, window=window)
    if site.latent is None:
        return replace(shape, key_heads=_key_heads(shape, matmuls.get(site.call, [])))
    if not is_absorbed(site):
        return replace(shape, latent_rank=site.latent.rank)
    rank, rope = site.latent.rank, site.latent.rope
    return replace(shape, key_heads=1, width=rank + rope, value_width=rank, latent_rank=rank)


def _key_heads(shape: AttentionShape, matmuls: list[WeightMatmul]) -> int:
    """How many heads the projection of keys makes: code may copy them for every query head before it multiplies."""
    columns = [matmul.elements // max(matmul.weight.meta.shape[-1], 1) for matmul in matmuls]
    width = max(shape.width, 1)
    # Two equal projections with fewer heads than queries are keys and values. One projection with more heads holds
    # queries, keys and values together, and half of what the queries leave is the keys.
    pairs = {made for made in columns if columns.count(made) > 1 and made % width == 0 and made // width < shape.heads}
    if len(pairs) == 1:
        heads = next(iter(pairs)) // width
    else:
        rest = [made // width - shape.heads for made in columns if made % width == 0 and made // width > shape.heads]
        heads = rest[0] // 2 if len(rest) == 1 and rest[0] % 2 == 0 else shape.key_heads
    return heads if heads and shape.heads % heads == 0 else shape.key_heads


def _engine_bytes(site: AttentionSite, shape: object, moved: int, key: TensorMeta, value: TensorMeta) -> int:
    """Keys and values once for the heads that share them; of latent attention one vector per key."""
    if not isinstance(shape, AttentionShape):
        return moved
    cached_bytes = tensor_bytes(key) + tensor_bytes(value)
    if site.latent is not None:
        return moved - cached_bytes + latent_cache_bytes(shape.sequences, shape.keys, site.latent, key)
    # Code that copied keys for every query head reads them that often; a cache holds them once per key head.
    made = key.shape[-3] if len(key.shape) > 2 else shape.key_heads  # heads, or tokens where those come first
    return moved - cached_bytes + cached_bytes * shape.key_heads // made if made == shape.heads else moved


def _written_between(graph: CallGraph, site: AttentionSite) -> list[int]:
    """Rows of what the same module does to scores that are written out: scale, mask, softmax."""
    ops = ops_of(graph)
    return [
        row
        for row in range(site.rows[0] + 1, site.rows[-1])
        if ops.call[row] == site.call and is_vector_work(kernels_of(graph.op_kinds[ops.kind[row]]))
    ]


def _absorbed(graph: CallGraph, site: AttentionSite, matmuls: _Matmuls) -> Iterator[FusedOps]:
    """The projection that expands the cache as two matmuls per head: of queries before, of results behind."""
    assert site.latent is not None
    rank, nope, value = site.latent.rank, site.latent.nope, site.latent.value
    for matmul in matmuls.get(site.call, []):
        kernel = single_kernel(graph, matmul.row)
        if kernel is None or matmul.weight.meta.shape[-1:] != (rank,) or matmul.row > site.row:
            continue
        expansion = fewer_rows(*kernel, needed=matmul.kept, made=matmul.made)
        heads, rest = divmod(expansion.weights, rank * (nope + value))
        if rest or not isinstance(expansion.shape, MatmulShape):
            continue
        yield FusedOps(
            rule=Fusion.ABSORBED,
            rows=(matmul.row, *_expansion_rows(graph, site, matmul.row)),
            kernels=tuple(_of_heads(expansion, heads, *sizes, nope + value) for sizes in ((rank, nope), (value, rank))),
        )


def _of_heads(matmul: Kernel, heads: int, columns: int, depth: int, widths: int) -> Kernel:
    """One of the two matmuls per head; each has the share of the work that its weights have."""
    assert isinstance(matmul.shape, MatmulShape)
    part = columns * depth // max(matmul.weights // (heads * widths), 1)
    return replace(
        matmul,
        flops=matmul.flops * part // widths,
        bytes_moved=matmul.bytes_moved * part // widths,
        weights=columns * depth,
        shape=replace(matmul.shape, columns=columns, depth=depth, count=heads),
    )


def _expansion_rows(graph: CallGraph, site: AttentionSite, row: int) -> list[int]:
    """What the module copies between the expanding projection and attention."""
    ops = ops_of(graph)
    between = range(row + 1, site.rows[0])
    return [
        matmul
        for matmul in between
        if ops.call[matmul] == site.call and is_vector_work(kernels_of(graph.op_kinds[ops.kind[matmul]]))
    ]


def _copies(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """Copies in an attention module that change a layout, or repeat keys and values for each query head."""
    ops = ops_of(graph)
    modules = {site.call for site in anatomy.attentions if site.latent is None}
    for row, index in enumerate(ops.kind):
        kind = graph.op_kinds[index]
        if ops.call[row] in modules and packet_of(kind.name) in _COPIES and is_vector_work(kernels_of(kind)):
            yield FusedOps(rule=Fusion.LAYOUT, rows=(row,), kernels=())


def _appends(graph: CallGraph, anatomy: Anatomy) -> Iterator[FusedOps]:
    """New entries behind the cached ones, read and written once; what the cache held stays where it is."""
    ops, (_, ends) = ops_of(graph), tensor_offsets(graph)
    for row, index in enumerate(ops.kind):
        kind = graph.op_kinds[index]
        if op_role(kind) is not OpRole.APPEND or len(kind.inputs) < 2:
            continue
        if anatomy.positions.cache_storages.isdisjoint(ops.output_storages[ends[row] : ends[row + 1]]):
            continue
        single = single_kernel(graph, row)
        if single is not None:
            new = sum(map(tensor_bytes, kind.inputs[1:]))
            kernel = replace(single[1], avoidable_bytes=max(0, single[1].bytes_moved - 2 * new))
            yield FusedOps(rule=Fusion.CACHE_IN_PLACE, rows=(row,), kernels=(kernel,))


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
    """Rows of the vector ops in the call of the experts' module; of a list of modules, the ops between its matmuls."""
    calls, call = calls_of(graph), ops_of(graph).call[block.row]
    while call >= 0 and graph.paths[calls.path[call]] != block.path:
        call = calls.parent[call]
    rows = range(min(block.rows), max(block.rows) + 1) if call < 0 else ops_in_call(graph, call)
    mine = set(block.rows)
    return [row for row in rows if row not in mine and is_vector_work(_kernels(graph, row))]


def _as_one(graph: CallGraph, block: ExpertBlock, matmuls: Sequence[Kernel], between: Sequence[int]) -> Kernel:
    """All matmuls on the rows that were routed; an engine keeps what the vector ops move in the kernel."""
    flops = min(block.flops, block.whole_row_flops)
    read = 1.0
    if flops < block.flops:  # the code runs experts on tokens that did not choose them
        read = min(1.0, block.distinct(routing_policy_of(graph), block.made_tokens) / max(block.touched, 1))
    share = flops / max(block.flops, 1)
    moved = round(sum(kernel.bytes_moved for kernel in matmuls) * read)
    avoidable = sum(kernel.bytes_moved for row in between for kernel in _kernels(graph, row))
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=matmuls[0].dtype,
        flops=flops,
        skippable_flops=0,
        bytes_moved=moved + avoidable,
        avoidable_bytes=avoidable,
        rows=max(1, round(sum(kernel.rows for kernel in matmuls) * share) // len(matmuls)),
        weights=matmuls[0].weights,
        shape=_shape(graph, block),
    )


def _shape(graph: CallGraph, block: ExpertBlock) -> ExpertsShape | None:
    """The block as tables list it, over all ranks of its plan; None: a matmul does not show its sizes."""
    shape = _kernels(graph, block.rows[0])[0].shape
    if isinstance(shape, ExpertsShape):  # an engine's op of all experts, which says so itself
        return shape
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
    """Whether an expert has a gate next to up and down; `inner` is the width on this rank."""
    return block.matrix_elements_each > 2 * hidden * inner


def tensor_ranks(graph: CallGraph, block: ExpertBlock) -> int:
    """How many ranks share each expert of the block."""
    if block.ranks > 1 or is_replicated(graph, block.path):
        return 1  # each rank has experts of its own, or all of them
    return (plan_in(graph.deployment) or ParallelPlan()).tp


def _depth(graph: CallGraph, row: int) -> int | None:
    """The length that a matmul sums over: the width of what goes into an expert, or into its last matmul."""
    kind = graph.op_kinds[ops_of(graph).kind[row]]
    if op_family(kind.name) is WorkFamily.GROUPED:
        return kind.inputs[0].shape[-1]
    shape = kernels_of(kind)[0].shape
    return shape.depth if isinstance(shape, MatmulShape) else None


def _weight_format(graph: CallGraph, block: ExpertBlock) -> str:
    """The stored format of the largest operand that is a weight of the block."""
    ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
    row = block.rows[0]
    kind = graph.op_kinds[ops.kind[row]]
    used = zip(kind.inputs, ops.input_storages[starts[row] : starts[row + 1]], strict=True)
    weights = [meta for meta, storage in used if storage in block.storages]
    return max(weights, key=elements).dtype if weights else block.dtype
