"""What a serving engine launches for each token of a decoder, read from one traced step.

Products that read one input and are shared alike are one product: query, key and value, or gate and up. How ranks share
a product follows from its place: in a block the last product is split by its rows, those that feed it by their columns,
and a projection onto a latent vector or onto the scores of experts is whole on every rank. A trace of one rank of a
plan gives the blocks of the whole model as well: what its ranks share is as many times as large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, calls_of, found_once, module_of, ops_of, weight_matrices
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightProduct, anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.decoder_needs import FIRST_FORWARD, AttentionLayers, DecoderNeeds, decoder_needs
from llm_perf_opt.costs.necessary.read_once import cache_bytes_by_call, cache_number_bytes
from llm_perf_opt.costs.necessary.stage_needs import expert_type, product_type
from llm_perf_opt.ops.table import op_family
from llm_perf_opt.timing.fused_experts import tensor_ranks
from llm_perf_opt.timing.fusions import readers_of_one_input
from llm_perf_opt.timing.step.engine_norms import EngineNorms, engine_norms
from llm_perf_opt.timing.step.engine_states import EngineStates, engine_states


class Split(StrEnum):
    """How the ranks that share a product divide it."""

    COLUMNS = "columns"  # each makes a part of the result
    ROWS = "rows"  # each sums over a part, and the parts are added up afterwards
    WHOLE = "whole"  # each does all of it


class DecoderPart(StrEnum):
    """Where in a decoder a product stands; checkpoints store their parts in formats of their own."""

    ATTENTION = "attention"
    LATENT = "latent attention"  # whose tables may hold the whole module
    ROUTER = "router"  # of experts, or of the keys that sparse attention looks at
    MLP = "mlp"  # and every other block
    HEAD = "head"  # needed for the last token of a sequence alone


_ATTENTIONS = (DecoderPart.ATTENTION, DecoderPart.LATENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProduct:
    """A product `[tokens, depth] x [depth, columns]` that each of `layers` layers launches once.

    `key_columns` of the columns make keys and values: ranks that outnumber the `key_heads` repeat them. `is_expansion`
    makes keys and values of latent vectors, which a step absorbs into two products for each head.
    """

    columns: int
    depth: int
    weight_format: str
    dtype: str  # of the multiplication
    split: Split
    key_columns: int = 0
    key_heads: int = 1
    part: DecoderPart = DecoderPart.MLP
    is_expansion: bool = False
    layers: int = 1

    def shared_by(self, ranks: int) -> tuple[int, int]:
        """Columns and depth of one rank's part."""
        if self.split is Split.COLUMNS:
            keys = self.key_columns // min(ranks, self.key_heads)
            return max(1, (self.columns - self.key_columns) // ranks + keys), self.depth
        return self.columns, max(1, self.depth // ranks) if self.split is Split.ROWS else self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExperts:
    """The routed experts of `layers` layers."""

    hidden: int
    inner: int
    experts: int
    chosen: int
    weight_format: str
    dtype: str  # of the multiplication
    layers: int = 1

    @property
    def stored_bytes(self) -> int:
        """Of all of them: gate, up and down."""
        one = TensorMeta(shape=(self.experts * self.inner, self.hidden), dtype=self.weight_format, device="cuda")
        return 3 * tensor_bytes(one) * self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBlocks:
    """A decoder as an engine runs it; layers that are alike are counted together."""

    hidden: int
    layers: int
    reduced: int  # parts of layers whose ranks add up what they made: attentions, MLPs, experts, mixers
    layer_norms: int  # over the hidden vector: those of all layers, and those outside
    products: tuple[EngineProduct, ...]
    attentions: tuple[AttentionLayers, ...]
    experts: tuple[EngineExperts, ...]
    norms: tuple[EngineNorms, ...]  # inside attentions
    states: EngineStates | None  # of layers without attention; None: every layer has it
    needs: DecoderNeeds
    cache_number_bytes: int  # of the traced cache, by which `attentions` count

    def key_heads(self, layer: AttentionLayers) -> int:
        """Heads of the keys that one rank alone would cache; a latent vector has one."""
        if layer.latent is not None:
            return 1
        return heads_cached(layer.cached_bytes, layer.qk_width + layer.v_width, self.cache_number_bytes)

    @property
    def macs_per_token(self) -> int:
        """Multiply-adds of products and experts for one token of one sequence."""
        products = sum(one.columns * one.depth * one.layers for one in self.products)
        return products + sum(3 * one.hidden * one.inner * one.chosen * one.layers for one in self.experts)


@found_once
def engine_blocks(graph: CallGraph) -> EngineBlocks:
    """The blocks of the decoder whose step `graph` is."""
    anatomy, needs = anatomy_of(graph), decoder_needs(graph)
    blocks: dict[int, list[_Member]] = {}
    for block, member in _members(graph, anatomy):
        blocks.setdefault(block, []).append(member)
    found = [product for one in _products(blocks, anatomy) for product in one]
    ranks, hidden = max((one.ranks for some in blocks.values() for one in some), default=1), _hidden(found)
    merged = Counter(_onto_hidden(product, hidden, ranks) for product in found)
    products = tuple(replace(one, layers=count) for one, count in merged.items())
    experts = tuple(replace(one, layers=count) for one, count in Counter(_experts(graph, anatomy)).items())
    of_heads = [one.ranks for some in blocks.values() for one in some if one.product.part in _ATTENTIONS]
    heads_ranks = max(of_heads, default=1)
    layers = _LayerCalls(graph, blocks)
    return EngineBlocks(
        hidden=hidden,
        layers=len(layers.calls),
        reduced=len(layers.parts(_reduced_calls(graph, anatomy, blocks))),
        layer_norms=_layer_norms(graph, anatomy, layers, hidden) or 2 * len(layers.calls) + 1,
        products=products,
        attentions=tuple(_of_all_heads(layer, heads_ranks) for layer in needs.attentions),
        experts=experts,
        norms=engine_norms(graph, anatomy, heads_ranks),
        states=engine_states(graph, len(layers.with_states(graph, anatomy)), needs.state_bytes),
        needs=needs,
        cache_number_bytes=cache_number_bytes(graph),
    )


def _hidden(products: Sequence[EngineProduct]) -> int:
    """The width of what goes from layer to layer: into the head, or on a rank without one out of the last products."""
    into_head = [product.depth for product in products if product.part is DecoderPart.HEAD]
    return max(into_head or [product.columns for product in products if product.split is Split.ROWS], default=0)


def _onto_hidden(product: EngineProduct, hidden: int, ranks: int) -> EngineProduct:
    """A last product of a block whose columns the traced plan divided in place of its rows."""
    if product.split is not Split.ROWS or ranks == 1 or product.columns * ranks != hidden:
        return product
    return replace(product, columns=hidden, depth=product.depth // ranks)


def _of_all_heads(layer: AttentionLayers, ranks: int) -> AttentionLayers:
    """The attention of which one of `ranks` was traced; each of them has the latent vectors whole."""
    cached = layer.cached_bytes * (1 if layer.latent is not None else ranks)
    return replace(layer, heads=layer.heads * ranks, cached_bytes=cached)


def heads_cached(token_bytes: int, width: int, number_bytes: int) -> int:
    """How many heads have keys and values of `width` numbers together in what a cache holds for one token."""
    return max(1, token_bytes // (width * number_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A product of a block as it stands in the trace."""

    row: int
    source: int  # the first product that reads the same input
    product: EngineProduct
    ranks: int  # that share the weight in the trace


def _products(blocks: dict[int, list[_Member]], anatomy: Anatomy) -> Iterator[list[EngineProduct]]:
    """The products of every block, those of one input and one split together."""
    attended = {site.call: site for site in anatomy.attentions}
    for block, members in blocks.items():
        merged: dict[tuple[object, ...], EngineProduct] = {}
        for member, split in zip(members, _splits(members, attended.get(block)), strict=True):
            one = _of_all_ranks(replace(member.product, split=split), member.ranks)
            key = (member.source, split, one.depth, one.weight_format, one.is_expansion, one.part)
            merged[key] = _joined(merged[key], one) if key in merged else one
        yield list(merged.values())


def _of_all_ranks(product: EngineProduct, ranks: int) -> EngineProduct:
    """The product of which one of `ranks` was traced."""
    if product.split is Split.ROWS:
        return replace(product, depth=product.depth * ranks)
    if product.split is Split.WHOLE:
        return product
    return replace(
        product,
        columns=product.columns * ranks,
        key_columns=product.key_columns * ranks,
        key_heads=product.key_heads * ranks if product.key_columns else 1,
    )


def _joined(first: EngineProduct, second: EngineProduct) -> EngineProduct:
    return replace(
        first,
        columns=first.columns + second.columns,
        key_columns=first.key_columns + second.key_columns,
        key_heads=max(first.key_heads, second.key_heads),
    )


class _LayerCalls:
    """The calls of a decoder's layers, those that hold blocks, and the parts of a layer: the calls right below."""

    def __init__(self, graph: CallGraph, blocks: dict[int, list[_Member]]) -> None:
        self._parents = calls_of(graph).parent
        holders = {
            self._parents[block]
            for block, members in blocks.items()
            if block >= 0 and members[0].product.part is not DecoderPart.HEAD
        }
        # A part may hold blocks itself: experts, one of which is shared.
        self.calls = {call for call in holders if not any(above in holders for above in self._above(call))}

    def _above(self, call: int) -> Iterator[int]:
        while call >= 0 and (call := self._parents[call]) >= 0:
            yield call

    def part(self, call: int) -> int | None:
        """The part of a layer in which a call runs; None: it runs outside, or is a layer itself."""
        return next((one for one in (call, *self._above(call)) if one >= 0 and self._parents[one] in self.calls), None)

    def parts(self, calls: Iterable[int]) -> set[int]:
        """The parts in which these run."""
        return {part for call in calls if (part := self.part(call)) is not None}

    def with_states(self, graph: CallGraph, anatomy: Anatomy) -> set[int]:
        """Parts without attention that read what an earlier step left."""
        cached = cache_bytes_by_call(graph, anatomy)
        reading = [call for (forward, call), size in cached.items() if forward == FIRST_FORWARD and size]
        return self.parts(reading) - self.parts(site.call for site in anatomy.attentions)


def _reduced_calls(graph: CallGraph, anatomy: Anatomy, blocks: dict[int, list[_Member]]) -> Iterator[int]:
    """Calls whose result is a sum over ranks: blocks, and routed experts of the first forward."""
    yield from (call for call, members in blocks.items() if members[0].product.part is not DecoderPart.HEAD)
    ops = ops_of(graph)
    for block in anatomy.experts:
        if anatomy.forward_of_ops[block.row] == FIRST_FORWARD:
            yield ops.call[block.row]


def _layer_norms(graph: CallGraph, anatomy: Anatomy, layers: _LayerCalls, hidden: int) -> int:
    """Calls in the first forward of norms over the hidden vector, in a layer or behind the last; 0: none has a weight.

    Models differ: one before each part, another behind it, or one for two parts.
    """
    calls = calls_of(graph)
    vectors = {
        module_of(one.name) for one in graph.parameters if one.meta.shape == (hidden,) and one.name.endswith(".weight")
    }
    return sum(
        graph.paths[path] in vectors
        and layers.part(calls.parent[call]) is None
        and calls.first_op[call] < calls.end_op[call]
        and anatomy.forward_of_ops[calls.first_op[call]] == FIRST_FORWARD
        for call, path in enumerate(calls.path)
    )


def _members(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, _Member]]:
    """The call of a block, and a product that runs in it."""
    ops, calls = ops_of(graph), calls_of(graph)
    source = {row: rows[0] for rows in readers_of_one_input(graph, anatomy) for row in rows}
    roles = weight_matrices(graph)
    sites = {site.call: site for site in anatomy.attentions}
    key_heads = _key_heads(graph, anatomy)
    ranks = (plan_in(graph.deployment) or ParallelPlan()).tp
    whole = replicated_in(graph.deployment) or frozenset()
    for product in anatomy.products:
        kind = graph.op_kinds[ops.kind[product.row]]
        if anatomy.forward_of_ops[product.row] != FIRST_FORWARD or op_family(kind.name) is WorkFamily.CONVOLUTION:
            continue
        call = ops.call[product.row]
        block = _block(graph, call, product.weight.name)
        role = Role.HEAD if _is_embedding(graph, product) else roles.get(product.weight.name)
        part = _part(role, sites.get(block), is_inside=calls.parent[block] in sites)
        one = _engine_product(product, part, sites.get(block), key_heads.get(block, 1))
        yield (
            block,
            _Member(
                row=product.row,
                source=source.get(product.row, product.row),
                product=one,
                ranks=1 if layer_pattern(product.weight.name) in whole else ranks,
            ),
        )


def _block(graph: CallGraph, call: int, weight: str) -> int:
    """The call of the block that a product is part of: the one above the module that owns the weight.

    Some code takes the weight of a module without calling it, as a step of Mamba does: then the product runs in the
    block itself.
    """
    if call < 0:
        return -1
    calls = calls_of(graph)
    is_own = not module_of(weight).startswith(f"{graph.paths[calls.path[call]]}.")
    return calls.parent[call] if is_own else call


def _is_embedding(graph: CallGraph, product: WeightProduct) -> bool:
    """Whether it multiplies with the weight of an embedding: a head that is tied to it."""
    return "Embedding" in graph.module_types.get(module_of(product.weight.name), "")


def _part(role: Role | None, site: AttentionSite | None, *, is_inside: bool) -> DecoderPart:
    """By its role, and by the attention that runs in the same module; `is_inside` a module of an attention's own."""
    if role is Role.HEAD:
        return DecoderPart.HEAD
    if role is Role.ROUTER or is_inside:
        return DecoderPart.ROUTER
    if site is None:
        return DecoderPart.MLP
    return DecoderPart.ATTENTION if site.latent is None else DecoderPart.LATENT


def _key_heads(graph: CallGraph, anatomy: Anatomy) -> dict[int, int]:
    """Call of an attention -> heads of its keys, from what its cache holds for one token."""
    found: dict[int, int] = {}
    cached, number = cache_bytes_by_call(graph, anatomy), cache_number_bytes(graph)
    for site in anatomy.attentions:
        tokens = anatomy.positions.batch * (site.keys - (site.queries if site.span.is_causal else 0))
        read = cached.get((FIRST_FORWARD, site.call), 0)
        found[site.call] = heads_cached(read // max(tokens, 1), site.qk_width + site.v_width, number)
    return found


def _engine_product(
    product: WeightProduct, part: DecoderPart, site: AttentionSite | None, key_heads: int
) -> EngineProduct:
    columns = product.weight.meta.shape[0]
    widths = () if site is None or site.latent is not None else (site.qk_width, site.v_width)
    is_key = site is not None and product.row < site.row and columns in [key_heads * width for width in widths]
    return EngineProduct(
        columns=columns,
        depth=product.elements // columns,
        weight_format=product.weight.meta.dtype,
        dtype=product_type(product),
        split=Split.WHOLE,
        key_columns=columns if is_key else 0,
        key_heads=key_heads if is_key else 1,
        part=part,
        is_expansion=product.is_expansion,
    )


def _splits(members: Sequence[_Member], site: AttentionSite | None) -> Iterator[Split]:
    """How each product of a block is shared."""
    inputs = [member.source for member in members if member.product.part is not DecoderPart.ROUTER]
    last = inputs[-1] if inputs else None
    for place, member in enumerate(members):
        later = members[place + 1 :]
        if member.product.part is DecoderPart.HEAD:
            yield Split.COLUMNS
        elif member.product.part is DecoderPart.ROUTER or _is_onto_latent(member, later, site):
            yield Split.WHOLE
        elif site is not None:
            yield Split.COLUMNS if member.row < site.row else Split.ROWS
        else:
            yield Split.ROWS if member.source == last and inputs.index(last) > 0 else Split.COLUMNS


def _is_onto_latent(member: _Member, later: Sequence[_Member], site: AttentionSite | None) -> bool:
    """Whether the result is a vector that products of the same attention expand again, and all heads need whole."""
    if site is None or site.latent is None or member.row > site.row:
        return False
    columns = member.product.columns
    expanded = [other.product.depth for other in later if other.row < site.row]
    return columns == site.latent.cached_width or columns in expanded


def _experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[EngineExperts]:
    ops = ops_of(graph)
    for block in anatomy.experts:
        if anatomy.forward_of_ops[block.row] != FIRST_FORWARD:
            continue
        first, last = (graph.op_kinds[ops.kind[row]] for row in (block.rows[0], block.rows[-1]))
        yield EngineExperts(
            hidden=first.inputs[0].shape[-1],
            inner=last.inputs[0].shape[-1] * tensor_ranks(graph, block),
            experts=block.experts * block.ranks,
            chosen=block.chosen,
            weight_format=first.inputs[1].dtype,
            dtype=expert_type(graph, block),
        )
