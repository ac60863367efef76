"""The kernels of one forward of a serving engine on one rank: any batch, lengths and plan, from the blocks of a trace.

Fusions by name: matmuls of one input are one matmul; norm and residual, rotary embedding and cache write, and the
activation with its gate are one vector kernel each, and so is each norm of queries and of keys; the routed experts of a
layer are one grouped kernel, behind two small ones that choose them and sort the rows; before a matmul in blocks of 8
bits its input is quantised. A step on latent vectors absorbs their expansion: the same weights in two matmuls for each
head; tables that measured such a module whole have it in one row. Launches are captured in graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.decoder_needs import AttentionLayers
from llm_perf_opt.ops.grouped_experts import touched_experts
from llm_perf_opt.ops.kernel_shape import (
    AdapterShape,
    AttentionShape,
    ExpertsShape,
    LatentModuleShape,
    MatmulShape,
    StateShape,
)
from llm_perf_opt.ops.op import AccessPattern, Kernel, KernelKind
from llm_perf_opt.timing.step.engine_blocks import (
    DecoderPart,
    EngineBlocks,
    EngineExperts,
    EngineMatmul,
    LoraAdapters,
    Split,
)
from llm_perf_opt.timing.step.engine_mixers import EngineStates

VALUE_BYTES = 2  # activations and what ranks communicate
SCORE_BYTES = 4  # of the router
_BLOCK_QUANTISED = "fp8-block"  # formats with matmuls that take activations in blocks with scales of their own
_MODULE_WIDTHS = frozenset({7168, 1536})  # hidden and query width of the model with a measured latent attention
_SPARSE_MODULES = {  # the same of models that look at chosen keys
    frozenset({7168, 1536}): "deepseek-ai/DeepSeek-V3.2",
    frozenset({6144, 2048}): "zai-org/GLM-5",
}

Counted = tuple[Kernel, int]  # a kernel, and how often it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What a forward of the whole replica computes: `queries` new tokens of `sequences`, each with `keys` in all."""

    sequences: float
    queries: int
    keys: int

    @property
    def tokens(self) -> float:
        """All new tokens."""
        return self.sequences * self.queries


def forward_kernels(
    blocks: EngineBlocks,
    forward: Forward,
    plan: ParallelPlan,
    knows: Callable[[Kernel], bool] | None = None,
    *,
    is_by_sequence: bool = False,
) -> Iterator[Counted]:
    """The kernels of one rank and how often each runs; `knows` says whether a module was measured whole.

    `is_by_sequence` leaves attention and states alone: what depends on the tokens of each sequence, not on their sum.
    """
    modules = [] if knows is None else list(whole_modules(blocks, forward, plan))
    if modules and knows is not None and all(knows(kernel) for kernel, _ in modules):
        yield from modules
        others = tuple(matmul for matmul in blocks.matmuls if matmul.part is not DecoderPart.LATENT)
        blocks = replace(blocks, matmuls=others, attentions=(), norms=())
    for layer in blocks.attentions:
        yield _attention(layer, blocks, forward, plan), layer.layers
    if blocks.states is not None:
        yield _states(blocks.states, forward, plan)
    if is_by_sequence:
        return
    for matmul in blocks.matmuls:
        yield from _matmul(matmul, forward, plan)
    for block in blocks.experts:
        yield _experts(block, forward, plan), block.layers
    if blocks.lora is not None:
        yield from _adapters(blocks, blocks.lora, forward, plan)
    yield from _vectors(blocks, forward, plan)
    yield from _collectives(blocks, forward, plan)


def _matmul(matmul: EngineMatmul, forward: Forward, plan: ParallelPlan) -> Iterator[Counted]:
    """One matmul, and the quantisation of its input."""
    columns, depth = matmul.shared_by(plan.tp)
    rows = _count((forward.sequences if matmul.part is DecoderPart.HEAD else forward.tokens) / plan.attention_dp)
    weights = TensorMeta(shape=(columns, depth), dtype=matmul.weight_format, device="cuda")
    kernel = Kernel(
        kind=KernelKind.MATMUL,
        dtype=matmul.dtype,
        flops=2 * rows * columns * depth,
        skippable_flops=0,
        bytes_moved=tensor_bytes(weights) + (values := rows * (columns + depth) * VALUE_BYTES),
        avoidable_bytes=values,
        rows=rows,
        weights=columns * depth,
        shape=MatmulShape(rows=rows, columns=columns, depth=depth, weight_format=matmul.weight_format),
    )
    yield kernel, matmul.layers
    if matmul.weight_format.startswith(_BLOCK_QUANTISED):
        yield _vector(rows * depth * (VALUE_BYTES + 1)), matmul.layers


def _adapters(blocks: EngineBlocks, lora: LoraAdapters, forward: Forward, plan: ParallelPlan) -> Iterator[Counted]:
    """Two kernels behind each matmul: all rows to the rank of their adapters, and back onto the result.

    vllm/lora/ops/triton_ops: one `lora_shrink` and one `lora_expand` for all linear layers that a matmul joins. The
    first reads the input and writes sums of 32 bits, the second reads these and adds to what the matmul wrote.
    """
    groups = plan.attention_dp
    active = lora.active(forward.sequences / groups)
    for matmul in blocks.matmuls:
        columns, depth = matmul.shared_by(plan.tp)
        rows = (forward.sequences if matmul.part is DecoderPart.HEAD else forward.tokens) / groups
        sums = blocks.merged(matmul) * lora.rank
        for is_shrink, width, values in ((True, depth, rows * depth), (False, columns, 2 * rows * columns)):
            weights = active * width * (sums if is_shrink else lora.rank)
            moved = (values + weights) * VALUE_BYTES + rows * sums * SCORE_BYTES
            shape = AdapterShape(rows=_count(rows), width=width, rank=lora.rank, is_shrink=is_shrink)
            yield _vector(moved, shape), matmul.layers


def _attention(layer: AttentionLayers, blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Kernel:
    shape = _attention_shape(layer, blocks, forward, plan)
    lanes, context = shape.sequences * shape.heads, max(forward.keys, forward.queries)
    pairs = layer.span.pairs(forward.queries, layer.encoded_keys or context)
    width = layer.qk_width + layer.v_width
    if layer.latent is not None and forward.queries == 1:
        width = 2 * layer.latent.rank + layer.latent.rope
    held = (layer.held_bytes if forward.queries > 1 else layer.cache_bytes)(context) // max(layer.layers, 1)
    share = 1.0 if layer.latent is not None else 1.0 / min(plan.tp, blocks.key_heads(layer))
    return Kernel(
        kind=KernelKind.ATTENTION,
        dtype=layer.dtype,
        flops=2 * lanes * pairs * width,
        skippable_flops=0,
        bytes_moved=round(shape.sequences * held * share) + (values := lanes * forward.queries * width * VALUE_BYTES),
        avoidable_bytes=values,
        sequences=shape.sequences,
        queries=forward.queries,
        shape=shape,
    )


def _attention_shape(
    layer: AttentionLayers, blocks: EngineBlocks, forward: Forward, plan: ParallelPlan
) -> AttentionShape:
    latent, chosen = layer.latent, layer.span.chosen
    keys = layer.encoded_keys or forward.keys
    return AttentionShape(
        sequences=_count(forward.sequences / plan.attention_dp),
        queries=forward.queries,
        keys=min(keys, chosen) if chosen is not None and forward.queries == 1 else keys,
        heads=max(1, layer.heads // plan.tp),
        key_heads=max(1, blocks.key_heads(layer) // plan.tp),
        width=layer.qk_width,
        value_width=layer.v_width,
        is_causal=layer.span.is_causal,
        window=layer.span.window,
        latent_rank=None if latent is None else latent.rank,
        cache_format=layer.dtype,
    )


def whole_modules(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[Counted]:
    """The latent attentions of blocks with the widths of a model that was measured whole."""
    latent = [matmul for matmul in blocks.matmuls if matmul.part is DecoderPart.LATENT]
    depths = {matmul.depth for matmul in latent}
    is_sparse = any(layer.span.chosen is not None for layer in blocks.attentions)
    model = next((name for widths, name in _SPARSE_MODULES.items() if depths >= widths), None) if is_sparse else None
    if not latent or (model is None and (is_sparse or not depths >= _MODULE_WIDTHS)):
        return
    is_narrow = latent[0].weight_format.startswith(("fp8", "float8"))
    projected = [next(_matmul(matmul, forward, plan))[0] for matmul in latent]
    for layer in blocks.attentions:
        attention = _attention(layer, blocks, forward, plan)
        shape = LatentModuleShape(
            attention=replace(_attention_shape(layer, blocks, forward, plan), keys=forward.keys),
            projections="fp8_block" if is_narrow else "bfloat16",
            sparse_model=model,
        )
        work = (attention, *projected)
        module = replace(
            attention,
            flops=sum(kernel.flops for kernel in work),
            bytes_moved=sum(kernel.bytes_moved for kernel in work),
            avoidable_bytes=sum(kernel.avoidable_bytes for kernel in work),
            shape=shape,
        )
        yield module, layer.layers


def _experts(block: EngineExperts, forward: Forward, plan: ParallelPlan) -> Kernel:
    tokens = _count(forward.tokens)
    shape = ExpertsShape(
        tokens=tokens,
        hidden=block.hidden,
        inner=block.inner,
        experts=block.experts,
        chosen=block.chosen,
        tensor_ranks=plan.stage_ranks // plan.ep,
        expert_ranks=plan.ep,
        weight_format=block.weight_format,
        is_gated=block.is_gated,
        are_rows_sent=are_rows_sent(block, plan),
    )
    each = block.matrices * block.hidden * shape.inner_of_rank
    touched = touched_experts(block.experts, block.chosen, tokens) / plan.ep
    stored = TensorMeta(shape=(each // block.hidden, block.hidden), dtype=block.weight_format, device="cuda")
    rows = max(1, round(tokens * block.chosen / plan.ep))
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=block.dtype,
        flops=2 * rows * each,
        skippable_flops=0,
        bytes_moved=round(touched * tensor_bytes(stored)) + (values := 2 * rows * block.hidden * VALUE_BYTES),
        avoidable_bytes=values,
        rows=max(1, round(rows / max(touched, 1))),
        weights=each,
        shape=shape,
    )


def are_rows_sent(block: EngineExperts, plan: ParallelPlan) -> bool:
    """Whether rows go to the ranks of their experts alone: with more ranks than a token has experts that is less.

    TensorRT-LLM decides by the same comparison (`select_alltoall_method_type`); SGLang and vLLM do so with DeepEP.
    """
    return plan.attention_dp > 1 and plan.ep == plan.stage_ranks > block.chosen


def _vectors(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[Counted]:
    """Norms with residuals, norms of queries and keys, rotation with cache write, gated activation, routing."""
    tokens = forward.tokens / plan.attention_dp
    yield _vector(4 * tokens * blocks.hidden * VALUE_BYTES), blocks.layer_norms
    for layer in blocks.attentions:
        rotated = 2 * (layer.heads * layer.qk_width) // plan.tp
        yield _vector(tokens * rotated * VALUE_BYTES), layer.layers
    for inside in blocks.norms:
        numbers = inside.numbers / inside.norms / (1 if inside.is_replicated else plan.tp)
        yield _vector(2 * tokens * numbers * VALUE_BYTES), inside.norms * inside.layers
    for matmul in blocks.matmuls:
        if matmul.split is Split.ROWS and matmul.part is DecoderPart.MLP:
            yield _vector(3 * tokens * matmul.depth / plan.tp * VALUE_BYTES), matmul.layers
    for block in blocks.experts:
        yield _vector(SCORE_BYTES * tokens * block.experts), 2 * block.layers


def _vector(moved: float, shape: StateShape | AdapterShape | None = None) -> Kernel:
    """A kernel that is bound by its bytes."""
    return Kernel(
        kind=KernelKind.VECTOR,
        dtype="bfloat16",
        flops=0,
        skippable_flops=0,
        bytes_moved=round(moved),
        shape=shape,
        pattern=AccessPattern.VECTORISED,
    )


def _states(states: EngineStates, forward: Forward, plan: ParallelPlan) -> Counted:
    """The rule of each layer. The norm with a gate behind it is the vector kernel before the mixer's last matmul."""
    sequences = forward.sequences / plan.attention_dp
    shape = StateShape(
        sequences=_count(sequences),
        queries=forward.queries,
        key_heads=states.key_heads and max(1, states.key_heads // plan.tp),
        value_heads=states.value_heads and max(1, states.value_heads // plan.tp),
    )
    return _vector(2 * sequences * states.layer_bytes / plan.tp, shape), states.layers


def _collectives(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[Counted]:
    """A reduction after each part of a layer, and of the embedding; what a norm over all heads needs of other ranks.

    The vocabulary is shared too: ranks gather the logits of last tokens. With attention of their own, rows travel to
    their experts.
    """
    row_bytes = blocks.hidden * VALUE_BYTES
    if plan.tp > 1:
        travelling = sum(block.layers for block in blocks.experts) if plan.attention_dp > 1 else 0
        count = blocks.reduced - travelling + (1 if blocks.layers else 0)
        yield (
            _collective_kernel(CollectiveKind.ALL_REDUCE, forward.tokens / plan.attention_dp * row_bytes, plan.tp),
            count,
        )
        logits = (
            sum(matmul.padded_columns for matmul in blocks.matmuls if matmul.part is DecoderPart.HEAD) * VALUE_BYTES
        )
        if logits:
            yield (
                _collective_kernel(CollectiveKind.ALL_GATHER, forward.sequences / plan.attention_dp * logits, plan.tp),
                1,
            )
        for inside in blocks.norms:
            tokens = forward.tokens / plan.attention_dp
            for width in inside.gathered:
                yield (
                    _collective_kernel(CollectiveKind.ALL_GATHER, tokens * width * VALUE_BYTES, plan.tp),
                    inside.layers,
                )
            if inside.across_heads:
                squares = tokens * inside.across_heads * SCORE_BYTES
                yield _collective_kernel(CollectiveKind.ALL_REDUCE, squares, plan.tp), inside.layers
    if plan.attention_dp > 1 and blocks.experts:
        for block in blocks.experts:
            yield from _to_experts_and_back(block, forward, plan, row_bytes)


def _to_experts_and_back(
    block: EngineExperts, forward: Forward, plan: ParallelPlan, row_bytes: int
) -> Iterator[Counted]:
    """Rows to every rank, or once to each rank that has experts of theirs, in the numbers that these multiply."""
    ranks = plan.stage_ranks
    if not are_rows_sent(block, plan):
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            yield _collective_kernel(kind, forward.tokens * row_bytes, ranks), block.layers
        return
    copies = forward.tokens / ranks * ranks * (1 - (1 - 1 / ranks) ** block.chosen)  # of the rows of one rank
    sent = TensorMeta(shape=(block.hidden,), dtype=block.dtype, device="cuda")
    for payload in (copies * tensor_bytes(sent), copies * row_bytes):
        yield _collective_kernel(CollectiveKind.ALL_TO_ALL, payload, ranks), block.layers


def _collective_kernel(kind: CollectiveKind, payload: float, ranks: int) -> Kernel:
    collective = Collective(kind=kind, payload_bytes=_count(payload), group=group_of(range(ranks)))
    return Kernel(
        kind=KernelKind.COMMUNICATION,
        dtype="bfloat16",
        flops=0,
        skippable_flops=0,
        bytes_moved=collective.payload_bytes,
        collective=collective,
    )


def _count(number: float) -> int:
    return max(1, round(number))
