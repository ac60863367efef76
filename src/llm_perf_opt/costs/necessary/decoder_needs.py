"""What one step of a decoder needs, for any batch and context, read from one traced step.

Every quantity grows in a known way: matmuls with the rows, attention with the visible keys, routed experts with the
distinct ones that a batch touches. So one trace gives a function, and thousands of points cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.costs.necessary.anatomy import Anatomy, anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite, Latent, VisibleSpan
from llm_perf_opt.costs.necessary.expert_blocks import FEWEST, UNIFORM, distinct_experts
from llm_perf_opt.costs.necessary.read_once import cache_bytes_by_call, cache_number_bytes, reads_by_stage
from llm_perf_opt.costs.necessary.stage_needs import (
    ExpertReads,
    NecessaryWork,
    contexts_of,
    expert_type,
    matmul_type,
)

FIRST_FORWARD = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulsPerToken:
    """Matmuls with weights that are stored alike; the tail's are needed for a sequence's last token alone."""

    dtype: str
    is_tail: bool
    macs: int  # for one token


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Layers with equal routed experts; `ranks` share them, of which `ranks_alike` hold the same tokens.

    On `copies` ranks all experts are held alike: each of them need do a share, and `bytes_each` is one.
    """

    layers: int
    experts: int
    chosen: int
    macs_each: int
    bytes_each: int
    dtype: str
    is_tail: bool
    ranks: int = 1
    ranks_alike: int = 1
    copies: int = 1

    def distinct(self, routing: str, tokens: int) -> float:
        """Experts of this rank that `tokens` of its batch, and as many on every other rank, have it read."""
        return distinct_experts(
            routing,
            self.experts,
            self.chosen,
            tokens,
            touched=self.experts,
            ranks=self.ranks,
            ranks_alike=self.ranks_alike,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Layers with equal attention. `cached_bytes` is what a cache holds for one token of one layer.

    `encoded_keys` come from an encoder and do not grow with the context; None: the keys are the decoder's own.
    """

    layers: int
    heads: int
    qk_width: int
    v_width: int
    span: VisibleSpan
    latent: Latent | None
    cached_bytes: int
    dtype: str
    is_tail: bool
    encoded_keys: int | None = None

    def macs(self, sequences: int, queries: int, context: int) -> int:
        """Multiply-adds of all layers for the last `queries` of `context` positions."""
        pairs = self.span.pairs(queries, self.encoded_keys or context)
        lanes = sequences * self.heads
        if self.latent is not None:
            return self.layers * self.latent.macs(pairs, lanes, context - queries)
        return self.layers * pairs * lanes * (self.qk_width + self.v_width)

    def cache_bytes(self, context: int) -> int:
        """What the next token must read of one sequence's cache, `context` counting that token."""
        if self.encoded_keys is not None:
            return self.layers * self.cached_bytes * self.encoded_keys
        return self.layers * self.cached_bytes * max(self.span.pairs(1, context) - 1, 0)

    def held_bytes(self, context: int) -> int:
        """What a cache must hold for `context` positions of one sequence."""
        keys = self.encoded_keys or min(context, self.span.window or self.span.chunk or context)
        return self.layers * self.cached_bytes * keys


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNeeds:
    """Necessary work of a decoder as a function of batch and context."""

    matmuls: tuple[MatmulsPerToken, ...]
    experts: tuple[ExpertLayers, ...]
    attentions: tuple[AttentionLayers, ...]
    weight_bytes: int  # read by every forward, the routed experts apart
    state_bytes: int  # of one sequence, whatever its length: recurrent states
    matrix_parameters: int  # elements that enter matmuls, the routed experts apart

    @property
    def active_matrix_parameters(self) -> int:
        """Elements of weights that one token meets in matmuls; of a rank's experts, as many as are expected."""
        routed = (
            block.layers * block.chosen * block.macs_each // (block.ranks * block.copies) for block in self.experts
        )
        return self.matrix_parameters + sum(routed)

    def step(self, *, batch: int, context: int, routing: str = UNIFORM) -> NecessaryWork:
        """One token for each of `batch` sequences; `context` counts that token."""
        cache = sum(layer.cache_bytes(context) for layer in self.attentions) + self.state_bytes
        return self._forward(batch, queries=1, context=context, routing=routing, cache_bytes=batch * cache)

    def prefill(self, *, batch: int, prompt: int, routing: str = UNIFORM) -> NecessaryWork:
        """`prompt` tokens for each of `batch` sequences, from nothing; the logits of the last one."""
        return self._forward(batch, queries=prompt, context=prompt, routing=routing, cache_bytes=0)

    def held_bytes(self, context: int) -> int:
        """What one sequence's cache holds after `context` tokens."""
        return sum(layer.held_bytes(context) for layer in self.attentions) + self.state_bytes

    def _forward(self, batch: int, *, queries: int, context: int, routing: str, cache_bytes: int) -> NecessaryWork:
        flops: Counter[str] = Counter()
        for matmul in self.matmuls:
            flops[matmul.dtype] += 2 * matmul.macs * batch * (1 if matmul.is_tail else queries)
        for layer in self.attentions:
            flops[layer.dtype] += 2 * layer.macs(batch, 1 if layer.is_tail else queries, context)
        tokens = [batch * (1 if block.is_tail else queries) for block in self.experts]
        reads = [_expert_reads(block, count, routing) for block, count in zip(self.experts, tokens, strict=True)]
        for block, count in zip(self.experts, tokens, strict=True):
            flops[block.dtype] += (
                2 * block.layers * count * block.chosen * block.macs_each // (block.ranks_alike * block.copies)
            )
        # Bytes of experts depend on the routing, which no weights decide; a lower bound may only count the fewest.
        expert_bytes, fewest = (
            round(
                sum(
                    block.layers * block.distinct(policy, count) * block.bytes_each
                    for block, count in zip(self.experts, tokens, strict=True)
                )
            )
            for policy in (routing, FEWEST)
        )
        return NecessaryWork(
            flops_by_dtype=dict(+flops),
            weight_bytes=self.weight_bytes + expert_bytes,
            expert_bytes=expert_bytes,
            fewest_expert_bytes=fewest,
            cache_bytes=cache_bytes,
            other_bytes=0,
            active_matrix_parameters=self.active_matrix_parameters,
            distinct_experts=tuple(reads),
        )


def _expert_reads(block: ExpertLayers, tokens: int, routing: str) -> ExpertReads:
    return ExpertReads(
        layers=block.layers,
        experts=block.experts,
        chosen=block.chosen,
        tokens=-(-tokens * block.ranks // block.ranks_alike),
        distinct=block.distinct(routing, tokens),
        policy=routing,
        ranks=block.ranks,
    )


@found_once
def decoder_needs(graph: CallGraph) -> DecoderNeeds:
    """What the decoder needs in the step that `graph` holds; of several steps the first counts."""
    if graph.phase != "decode" or graph.storages is None:
        raise PerfOptError(
            "What a decoder needs can only be counted in a traced decode step.",
            why=f"this is the phase {graph.phase!r} of {graph.model}, traced by {graph.tracer}",
            fix="trace the model with the weightless tracer and at least one decode step",
        )
    anatomy = anatomy_of(graph)
    traced = graph.workload.get("batch")
    batch = traced if isinstance(traced, int) else anatomy.positions.batch
    cached = cache_bytes_by_call(graph, anatomy)
    return DecoderNeeds(
        matmuls=tuple(_matmuls(anatomy, batch)),
        experts=tuple(_expert_layers(graph, anatomy)),
        attentions=tuple(_attention_layers(graph, anatomy, batch, cached)),
        weight_bytes=_weight_bytes(graph, anatomy),
        state_bytes=_state_bytes(anatomy, cached) // batch,
        matrix_parameters=sum(_matrix_elements(anatomy).values()),
    )


def _in_first(anatomy: Anatomy, row: int) -> bool:
    return anatomy.forward_of_ops[row] == FIRST_FORWARD


def _matmuls(anatomy: Anatomy, batch: int) -> Iterator[MatmulsPerToken]:
    macs: Counter[tuple[str, bool]] = Counter()
    for matmul in anatomy.matmuls:
        if _in_first(anatomy, matmul.row):
            needed, dtype = matmul.necessary_flops // 2, matmul_type(matmul)
            last = needed * matmul.last_columns // matmul.columns  # of a step, which has one position
            macs[dtype, matmul.is_tail] += needed - last
            macs[dtype, True] += last
    for (dtype, is_tail), count in macs.items():
        yield MatmulsPerToken(dtype=dtype, is_tail=is_tail, macs=count // batch)


def _matrix_elements(anatomy: Anatomy) -> dict[int, int]:
    used: dict[int, int] = {}
    for matmul in anatomy.matmuls:
        if _in_first(anatomy, matmul.row) and not matmul.is_unused:
            used[matmul.weight.storage] = max(used.get(matmul.weight.storage, 0), matmul.elements)
    return used


def _expert_layers(graph: CallGraph, anatomy: Anatomy) -> Iterator[ExpertLayers]:
    alike = Counter(
        (
            block.experts,
            block.chosen,
            block.matrix_elements_each,
            block.bytes_each,
            expert_type(graph, block),
            block.is_tail,
            block.ranks,
            block.ranks_alike,
            block.copies,
        )
        for block in anatomy.experts
        if _in_first(anatomy, block.row) and block.tokens
    )
    for (experts, chosen, macs, size, dtype, is_tail, ranks, ranks_alike, copies), layers in alike.items():
        yield ExpertLayers(
            layers=layers,
            experts=experts,
            chosen=chosen,
            macs_each=macs,
            bytes_each=size,
            dtype=dtype,
            is_tail=is_tail,
            ranks=ranks,
            ranks_alike=ranks_alike,
            copies=copies,
        )


def _attention_layers(
    graph: CallGraph, anatomy: Anatomy, batch: int, cached: Mapping[tuple[int, int], int]
) -> Iterator[AttentionLayers]:
    alike = Counter(
        (
            site.lanes // batch,
            site.qk_width,
            site.v_width,
            site.span,
            site.latent,
            _cached_bytes(graph, site, batch, cached.get((FIRST_FORWARD, site.call), 0)),
            site.dtype,
            site.is_tail,
            None if site.span.is_causal else site.keys,
        )
        for site in anatomy.attentions
        if _in_first(anatomy, site.row) and not site.is_unused
    )
    for (heads, qk_width, v_width, span, latent, size, dtype, is_tail, encoded), layers in alike.items():
        yield AttentionLayers(
            layers=layers,
            heads=heads,
            qk_width=qk_width,
            v_width=v_width,
            span=span,
            latent=latent,
            cached_bytes=size,
            dtype=dtype,
            is_tail=is_tail,
            encoded_keys=encoded,
        )


def _cached_bytes(graph: CallGraph, site: AttentionSite, batch: int, read: int) -> int:
    """Per token of one sequence: as the code keeps it, or the latent vector where that is less."""
    before = batch * (site.keys - (site.queries if site.span.is_causal else 0))
    per_token = read // before if before else 0
    return per_token if site.latent is None else min(per_token, site.latent.cached_width * cache_number_bytes(graph))


def _state_bytes(anatomy: Anatomy, cached: Mapping[tuple[int, int], int]) -> int:
    """What is carried from step to step and read outside attention: recurrent states, which do not grow."""
    attending = {site.call for site in anatomy.attentions}
    return sum(size for (forward, call), size in cached.items() if forward == FIRST_FORWARD and call not in attending)


def _weight_bytes(graph: CallGraph, anatomy: Anatomy) -> int:
    reads = reads_by_stage(graph, anatomy, contexts_of(graph, anatomy)) or {}
    return sum(stage.weights for stage in reads.values()) // max(anatomy.forward_of_ops[-1], 1)
