"""The kernels of one forward of a serving engine on one rank: any batch, lengths and plan, from the blocks of a trace.

Fusions by name: products of one input are one product; norm and residual, rotary embedding and cache write, and the
activation with its gate are one vector kernel each, and so is each norm of queries and of keys; the routed experts of a
layer are one grouped kernel, behind two small ones that choose them and sort the rows; before a product in blocks of 8
bits its input is quantised. A step on latent vectors absorbs their expansion: the same weights in two products for each
head. Launches are captured in graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.analyses.kernels.recurrent import HEAD_WIDTH
from llm_perf_opt.analyses.necessary.decoder_needs import AttentionLayers
from llm_perf_opt.analyses.serving.engine_blocks import DecoderPart, EngineBlocks, EngineProduct, Split
from llm_perf_opt.analyses.serving.engine_states import EngineStates
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, KernelShape, ProductShape

VALUE_BYTES = 2  # activations and what ranks exchange
SCORE_BYTES = 4  # of the router
_BLOCK_QUANTISED = "fp8-block"  # formats whose products take activations in blocks with scales of their own


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorWork:
    """A kernel that is bound by its bytes."""

    bytes_moved: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWork:
    """A layer that reads and writes the states of its sequences; heads are those of a rank, 0 where none are known."""

    sequences: float
    queries: int
    key_heads: int
    value_heads: int
    bytes_moved: float


EngineWork = KernelShape | Collective | VectorWork | StateWork


def forward_kernels(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[tuple[EngineWork, int]]:
    """The kernels of one rank and how often each runs."""
    for product in blocks.products:
        yield from _product(product, forward, plan)
    for layer in blocks.attentions:
        yield _attention(layer, blocks.key_heads(layer), forward, plan), layer.layers
    for block in blocks.experts:
        yield (
            ExpertsShape(
                tokens=_count(forward.tokens),
                hidden=block.hidden,
                inner=block.inner,
                experts=block.experts,
                chosen=block.chosen,
                tensor_ranks=plan.stage_ranks // plan.ep,
                expert_ranks=plan.ep,
                weight_format=block.weight_format,
            ),
            block.layers,
        )
    yield from _vectors(blocks, forward, plan)
    if blocks.states is not None:
        yield from _states(blocks.states, forward, plan)
    yield from _exchanges(blocks, forward, plan)


def _product(product: EngineProduct, forward: Forward, plan: ParallelPlan) -> Iterator[tuple[EngineWork, int]]:
    """One product, and the quantisation of its input."""
    columns, depth = product.shared_by(plan.tp)
    rows = _count((forward.sequences if product.part is DecoderPart.HEAD else forward.tokens) / plan.attention_dp)
    shape = ProductShape(rows=rows, columns=columns, depth=depth, weight_format=product.weight_format)
    yield shape, product.layers
    if product.weight_format.startswith(_BLOCK_QUANTISED):
        yield VectorWork(bytes_moved=rows * depth * (VALUE_BYTES + 1)), product.layers


def _attention(layer: AttentionLayers, key_heads: int, forward: Forward, plan: ParallelPlan) -> AttentionShape:
    latent, chosen = layer.latent, layer.span.chosen
    keys = layer.encoded_keys or forward.keys
    return AttentionShape(
        sequences=_count(forward.sequences / plan.attention_dp),
        queries=forward.queries,
        keys=min(keys, chosen) if chosen is not None and forward.queries == 1 else keys,
        heads=max(1, layer.heads // plan.tp),
        key_heads=max(1, key_heads // plan.tp),
        width=layer.qk_width,
        value_width=layer.v_width,
        is_causal=layer.span.is_causal,
        window=layer.span.window,
        latent_rank=None if latent is None else latent.rank,
        cache_format=layer.dtype,
    )


def _vectors(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[tuple[EngineWork, int]]:
    """Norms with residuals and those of queries and keys, rotation with cache write, gated activation, routing."""
    tokens = forward.tokens / plan.attention_dp
    yield VectorWork(bytes_moved=4 * tokens * blocks.hidden * VALUE_BYTES), 2 * blocks.layers + 1
    for layer in blocks.attentions:
        rotated = 2 * (layer.heads * layer.qk_width) // plan.tp
        yield VectorWork(bytes_moved=tokens * rotated * VALUE_BYTES), layer.layers
    for inside in blocks.norms:
        numbers = inside.numbers / inside.norms / (1 if inside.is_whole else plan.tp)
        yield VectorWork(bytes_moved=2 * tokens * numbers * VALUE_BYTES), inside.norms * inside.layers
    for product in blocks.products:
        if product.split is Split.ROWS and product.part is DecoderPart.MLP:
            yield VectorWork(bytes_moved=3 * tokens * product.depth / plan.tp * VALUE_BYTES), product.layers
    for block in blocks.experts:
        yield VectorWork(bytes_moved=SCORE_BYTES * tokens * block.experts), 2 * block.layers


def _states(states: EngineStates, forward: Forward, plan: ParallelPlan) -> Iterator[tuple[EngineWork, int]]:
    """The rule of each layer and, where its heads are known, the norm with a gate behind it."""
    sequences = forward.sequences / plan.attention_dp
    work = StateWork(
        sequences=sequences,
        queries=forward.queries,
        key_heads=_share(states.key_heads, plan.tp),
        value_heads=_share(states.value_heads, plan.tp),
        bytes_moved=2 * sequences * states.layer_bytes / plan.tp,
    )
    yield work, states.layers
    if states.value_heads:
        numbers = forward.tokens / plan.attention_dp * work.value_heads * HEAD_WIDTH
        yield VectorWork(bytes_moved=3 * numbers * VALUE_BYTES), states.layers


def _share(heads: int, ranks: int) -> int:
    return max(1, heads // ranks) if heads else 0


def _exchanges(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan) -> Iterator[tuple[EngineWork, int]]:
    """A reduction after attention, one after the MLP, and one of squares where a norm goes over all heads.

    With attention of their own, rows travel to their experts.
    """
    row_bytes = blocks.hidden * VALUE_BYTES
    if plan.tp > 1:
        count = blocks.layers * (2 if plan.attention_dp == 1 else 1)
        yield _exchange(CollectiveKind.ALL_REDUCE, forward.tokens / plan.attention_dp * row_bytes, plan.tp), count
        for inside in blocks.norms:
            squares = forward.tokens / plan.attention_dp * inside.across_heads * SCORE_BYTES
            if inside.across_heads:
                yield _exchange(CollectiveKind.ALL_REDUCE, squares, plan.tp), inside.layers
    if plan.attention_dp > 1 and blocks.experts:
        layers = sum(block.layers for block in blocks.experts)
        whole = forward.tokens * row_bytes
        yield _exchange(CollectiveKind.ALL_GATHER, whole, plan.stage_ranks), layers
        yield _exchange(CollectiveKind.REDUCE_SCATTER, whole, plan.stage_ranks), layers


def _exchange(kind: CollectiveKind, payload: float, ranks: int) -> Collective:
    return Collective(kind=kind, payload_bytes=_count(payload), group=group_of(range(ranks)))


def _count(number: float) -> int:
    return max(1, round(number))
