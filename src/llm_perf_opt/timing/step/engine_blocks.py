"""What a serving engine launches for each token of a decoder, read from one traced step.

Matmuls that read one input and are sharded alike are merged: query, key and value, or gate and up. How ranks shard a
matmul follows from its place: in a block the last matmul is split by its rows, the ones before it by their columns,
and a projection onto a latent vector or onto the scores of experts is replicated on every rank. A trace of one rank of
a plan gives the blocks of the whole model as well: what its ranks share is as many times as large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import (
    Role,
    calls_of,
    found_once,
    module_of,
    ops_of,
    tensor_offsets,
    weight_matrices,
)
from llm_perf_opt.core.callgraph.stored_findings import kept_in_store
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.costs.necessary.anatomy import Anatomy, WeightMatmul, anatomy_of
from llm_perf_opt.costs.necessary.attention_sites import AttentionSite
from llm_perf_opt.costs.necessary.decoder_needs import FIRST_FORWARD, AttentionLayers, decoder_needs
from llm_perf_opt.costs.necessary.read_once import cache_bytes_by_call, cache_number_bytes
from llm_perf_opt.costs.necessary.stage_needs import expert_type, matmul_type
from llm_perf_opt.ops.table import op_family
from llm_perf_opt.timing.fused_blocks import is_gated, tensor_ranks
from llm_perf_opt.timing.fusions import readers_of_one_input
from llm_perf_opt.timing.step.engine_mixers import (
    EngineNorms,
    EngineStates,
    engine_norms,
    engine_states,
    scalar_columns,
)


class Split(StrEnum):
    """How the ranks that share a matmul divide it."""

    COLUMNS = "columns"  # each makes a part of the result
    ROWS = "rows"  # each sums over a part, and the parts are added up afterwards
    REPLICATED = "replicated"  # each does all of it


class DecoderPart(StrEnum):
    """Where in a decoder a matmul is; checkpoints store their parts in formats of their own."""

    ATTENTION = "attention"
    LATENT = "latent attention"  # its tables may hold the whole module
    ROUTER = "router"  # of experts, or of the keys that sparse attention looks at
    MLP = "mlp"  # and every other block
    HEAD = "head"  # needed for the last token of a sequence alone


_VOCABULARY_STEP = 64  # `pad_vocab_size` of vLLM's and SGLang's heads
_ATTENTIONS = (DecoderPart.ATTENTION, DecoderPart.LATENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMatmul:
    """A matmul `[tokens, depth] x [depth, columns]` that each of `layers` layers launches once.

    `key_columns` of the columns make keys and values: ranks that outnumber the `key_heads` repeat them. `is_expansion`
    makes keys and values of latent vectors, which a step absorbs into two matmuls for each head.
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

    @property
    def padded_columns(self) -> int:
        """Of a head as vLLM and SGLang compute it: the vocabulary in whole steps, for any number of ranks."""
        step = _VOCABULARY_STEP if self.part is DecoderPart.HEAD else 1
        return -(-self.columns // step) * step

    def shared_by(self, ranks: int) -> tuple[int, int]:
        """Columns and depth of one rank's part."""
        if self.split is Split.COLUMNS:
            keys = self.key_columns // min(ranks, self.key_heads)
            return max(1, (self.padded_columns - self.key_columns) // ranks + keys), self.depth
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
    is_gated: bool  # else up and down alone
    layers: int = 1

    @property
    def matrices(self) -> int:
        """Of one expert."""
        return 3 if self.is_gated else 2

    @property
    def matrix_elements_each(self) -> int:
        """Of one expert."""
        return self.matrices * self.hidden * self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapters:
    """Adapters in the memory of a server, each asked for as often as the others; all are padded to one rank."""

    count: int
    rank: int

    def active(self, sequences: float) -> float:
        """How many different ones a step with this many sequences meets, in the mean."""
        missed: float = (1 - 1 / self.count) ** max(1.0, sequences)
        return self.count * (1 - missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBlocks:
    """A decoder as an engine runs it; layers that are alike are counted together."""

    hidden: int
    layers: int
    reduced: int  # sums over ranks: one for each attention, MLP or mixer; parts that read one norm share a sum
    layer_norms: int  # over the hidden vector, in all layers and outside
    matmuls: tuple[EngineMatmul, ...]
    attentions: tuple[AttentionLayers, ...]
    experts: tuple[EngineExperts, ...]
    norms: tuple[EngineNorms, ...]  # inside attentions
    states: EngineStates | None  # of layers without attention; None: every layer has it
    cache_number_bytes: int  # of the traced cache, by which `attentions` count
    lora: LoraAdapters | None = None

    def merged(self, matmul: EngineMatmul) -> int:
        """How many linear layers of the model a matmul joins: queries, keys and values; gate and up."""
        if matmul.split is not Split.COLUMNS or matmul.part is DecoderPart.HEAD:
            return 1
        if matmul.key_columns:
            return 3 if matmul.columns > matmul.key_columns else 2
        rows = {m.depth for m in self.matmuls if m.split is Split.ROWS and m.part is matmul.part}
        return 2 if matmul.columns % 2 == 0 and matmul.columns // 2 in rows else 1

    def key_heads(self, layer: AttentionLayers) -> int:
        """Heads of the keys that one rank alone would cache; a latent vector has one."""
        if layer.latent is not None:
            return 1
        return heads_cached(layer.cached_bytes, layer.qk_width + layer.v_width, self.cache_number_bytes)

    @property
    def macs_per_token(self) -> int:
        """Multiply-adds of matmuls and experts for one token of one sequence."""
        matmuls = sum(matmul.columns * matmul.depth * matmul.layers for matmul in self.matmuls)
        return matmuls + sum(block.matrix_elements_each * block.chosen * block.layers for block in self.experts)


@found_once
@kept_in_store("blocks of a step", EngineBlocks)
def engine_blocks(graph: CallGraph) -> EngineBlocks:
    """The blocks of a decoder, from the graph of one of its steps."""
    anatomy, needs = anatomy_of(graph), decoder_needs(graph)
    blocks: dict[int, list[_Member]] = {}
    for block, member in _members(graph, anatomy):
        blocks.setdefault(block, []).append(member)
    traced_matmuls = [matmul for of_block in _matmuls(blocks, anatomy, scalar_columns(graph)) for matmul in of_block]
    ranks, hidden = (
        max((member.ranks for members in blocks.values() for member in members), default=1),
        _hidden(traced_matmuls),
    )
    merged = Counter(_onto_hidden(matmul, hidden, ranks) for matmul in traced_matmuls)
    matmuls = tuple(replace(matmul, layers=count) for matmul, count in merged.items())
    experts = tuple(replace(block, layers=count) for block, count in Counter(_experts(graph, anatomy)).items())
    of_heads = [member.ranks for members in blocks.values() for member in members if member.matmul.part in _ATTENTIONS]
    heads_ranks = max(of_heads, default=1)
    depths = {part.depth for part in traced_matmuls if part.part in _ATTENTIONS and part.split is Split.ROWS}
    layers = _LayerCalls(graph, blocks)
    return EngineBlocks(
        hidden=hidden,
        layers=len(layers.calls),
        reduced=len({layers.input_of(part) for part in layers.parts(_reduced_calls(graph, anatomy, blocks))}),
        # Norms without a weight are no parameters: then two in each layer and one behind the last are taken.
        layer_norms=_layer_norms(graph, anatomy, layers, hidden) or 2 * len(layers.calls) + 1,
        matmuls=matmuls,
        attentions=tuple(_of_all_heads(layer, heads_ranks, depths) for layer in needs.attentions),
        experts=experts,
        norms=engine_norms(graph, anatomy, heads_ranks),
        states=engine_states(graph, len(layers.with_states(graph, anatomy)), needs.state_bytes),
        cache_number_bytes=cache_number_bytes(graph),
    )


def _hidden(matmuls: Sequence[EngineMatmul]) -> int:
    """The width of what goes from layer to layer: into the head, or on a rank without one out of the last matmuls."""
    into_head = [matmul.depth for matmul in matmuls if matmul.part is DecoderPart.HEAD]
    return max(into_head or [matmul.columns for matmul in matmuls if matmul.split is Split.ROWS], default=0)


def _onto_hidden(matmul: EngineMatmul, hidden: int, ranks: int) -> EngineMatmul:
    """The last matmul of a block, where the traced plan divided its columns in place of its rows."""
    if matmul.split is not Split.ROWS or ranks == 1 or matmul.columns * ranks != hidden:
        return matmul
    return replace(matmul, columns=hidden, depth=matmul.depth // ranks)


def _of_all_heads(layer: AttentionLayers, ranks: int, depths: Collection[int]) -> AttentionLayers:
    """The attention of which one of `ranks` was traced; each of them has the latent vectors whole.

    The plan of some models gathers queries, keys and values: each rank then attends with all heads, and those are as
    wide as what the next matmul reads on all ranks together (`depths`).
    """
    width = layer.heads * layer.v_width
    if layer.latent is None and width in depths and width * ranks not in depths:
        return layer
    # Ranks split heads, and each keeps the keys of its heads; a latent vector serves all heads.
    cached = layer.cached_bytes * (1 if layer.latent is not None else ranks)
    return replace(layer, heads=layer.heads * ranks, cached_bytes=cached)


def heads_cached(token_bytes: int, width: int, number_bytes: int) -> int:
    """How many heads have keys and values of `width` numbers together in what a cache holds for one token."""
    return max(1, token_bytes // (width * number_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A matmul of a block as it is in the trace."""

    row: int
    source: int  # the first matmul that reads the same input
    matmul: EngineMatmul
    ranks: int  # that share the weight in the trace


def _matmuls(
    blocks: dict[int, list[_Member]], anatomy: Anatomy, scalars: frozenset[int]
) -> Iterator[list[EngineMatmul]]:
    """The matmuls of every block, one for all of the same input and split; `scalars` are columns of a kind apart."""
    attended = {site.call: site for site in anatomy.attentions}
    for block, members in blocks.items():
        merged: dict[tuple[object, ...], EngineMatmul] = {}
        for member, split in zip(members, _splits(members, attended.get(block)), strict=True):
            matmul = _of_all_ranks(replace(member.matmul, split=split), member.ranks)
            kind = (
                split,
                matmul.depth,
                matmul.weight_format,
                matmul.is_expansion,
                matmul.part,
                matmul.columns in scalars,
            )
            key = (member.source, *kind)
            merged[key] = _joined(merged[key], matmul) if key in merged else matmul
        yield list(merged.values())


def _of_all_ranks(matmul: EngineMatmul, ranks: int) -> EngineMatmul:
    """The matmul of which one of `ranks` was traced."""
    if matmul.split is Split.ROWS:
        return replace(matmul, depth=matmul.depth * ranks)
    if matmul.split is Split.REPLICATED:
        return matmul
    return replace(
        matmul,
        columns=matmul.columns * ranks,
        key_columns=matmul.key_columns * ranks,
        key_heads=matmul.key_heads * ranks if matmul.key_columns else 1,
    )


def _joined(first: EngineMatmul, second: EngineMatmul) -> EngineMatmul:
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
            if block >= 0 and members[0].matmul.part is not DecoderPart.HEAD
        }
        # A part may hold blocks itself: experts, one of which is shared.
        self.calls = {call for call in holders if not any(above in holders for above in self._above(call))}
        self._inputs: dict[int, tuple[int, int]] = {}  # part -> its layer, and the tensor that its first matmul reads
        ops, (starts, _) = ops_of(graph), tensor_offsets(graph)
        for row, block in sorted((member.row, block) for block, members in blocks.items() for member in members):
            storage = ops.input_storages[starts[row]]
            if (part := self.part(block)) is not None and storage >= 0:
                self._inputs.setdefault(part, (self._parents[part], storage))

    def _above(self, call: int) -> Iterator[int]:
        while call >= 0 and (call := self._parents[call]) >= 0:
            yield call

    def part(self, call: int) -> int | None:
        """The part of a layer in which a call runs; None: it runs outside, or is a layer itself."""
        return next(
            (
                candidate
                for candidate in (call, *self._above(call))
                if candidate >= 0 and self._parents[candidate] in self.calls
            ),
            None,
        )

    def parts(self, calls: Iterable[int]) -> set[int]:
        """The parts in which these run."""
        return {part for call in calls if (part := self.part(call)) is not None}

    def input_of(self, part: int) -> tuple[int, int]:
        """Its layer and the tensor that it reads: parts of one input run next to each other, and are added up once."""
        return self._inputs.get(part, (part, -1))

    def with_states(self, graph: CallGraph, anatomy: Anatomy) -> set[int]:
        """Parts without attention that read what an earlier step left."""
        cached = cache_bytes_by_call(graph, anatomy)
        reading = [call for (forward, call), size in cached.items() if forward == FIRST_FORWARD and size]
        return self.parts(reading) - self.parts(site.call for site in anatomy.attentions)


def _reduced_calls(graph: CallGraph, anatomy: Anatomy, blocks: dict[int, list[_Member]]) -> Iterator[int]:
    """Calls that end in a sum over ranks: blocks, and routed experts of the first forward."""
    yield from (call for call, members in blocks.items() if members[0].matmul.part is not DecoderPart.HEAD)
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
        module_of(parameter.name)
        for parameter in graph.parameters
        if parameter.meta.shape == (hidden,) and parameter.name.endswith(".weight")
    }
    return sum(
        graph.paths[path] in vectors
        and layers.part(calls.parent[call]) is None
        and calls.first_op[call] < calls.end_op[call]
        and anatomy.forward_of_ops[calls.first_op[call]] == FIRST_FORWARD
        for call, path in enumerate(calls.path)
    )


def _members(graph: CallGraph, anatomy: Anatomy) -> Iterator[tuple[int, _Member]]:
    """The call of a block, and a matmul that runs in it."""
    ops, calls = ops_of(graph), calls_of(graph)
    source = {row: rows[0] for rows in readers_of_one_input(graph, anatomy) for row in rows}
    roles = weight_matrices(graph)
    sites = {site.call: site for site in anatomy.attentions}
    key_heads = _key_heads(graph, anatomy)
    ranks = (plan_in(graph.deployment) or ParallelPlan()).tp
    replicated = replicated_in(graph.deployment) or frozenset()
    for matmul in anatomy.matmuls:
        kind = graph.op_kinds[ops.kind[matmul.row]]
        if anatomy.forward_of_ops[matmul.row] != FIRST_FORWARD or op_family(kind.name) is WorkFamily.CONVOLUTION:
            continue
        call = ops.call[matmul.row]
        block = _block(graph, call, matmul.weight.name)
        role = Role.HEAD if _is_embedding(graph, matmul) else roles.get(matmul.weight.name)
        part = _part(role, sites.get(block), is_inside=calls.parent[block] in sites)
        of_rank = _engine_matmul(matmul, part, sites.get(block), key_heads.get(block, 1))
        yield (
            block,
            _Member(
                row=matmul.row,
                # Nobody joins the scores of experts with the gate of a shared expert.
                source=matmul.row if role is Role.ROUTER else source.get(matmul.row, matmul.row),
                matmul=of_rank,
                ranks=1 if layer_pattern(matmul.weight.name) in replicated else ranks,
            ),
        )


def _block(graph: CallGraph, call: int, weight: str) -> int:
    """The call of the block that a matmul is part of: the one above the module that owns the weight.

    Some code takes the weight of a module without calling it, as a step of Mamba does: then the matmul runs in the
    block itself.
    """
    if call < 0:
        return -1
    calls = calls_of(graph)
    is_own = not module_of(weight).startswith(f"{graph.paths[calls.path[call]]}.")
    return calls.parent[call] if is_own else call


def _is_embedding(graph: CallGraph, matmul: WeightMatmul) -> bool:
    """Whether it multiplies with the weight of an embedding: a head that is tied to it."""
    return "Embedding" in graph.module_types.get(module_of(matmul.weight.name), "")


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
    heads_by_call: dict[int, int] = {}
    cached, number = cache_bytes_by_call(graph, anatomy), cache_number_bytes(graph)
    for site in anatomy.attentions:
        tokens = anatomy.positions.batch * (site.keys - (site.queries if site.span.is_causal else 0))
        read = cached.get((FIRST_FORWARD, site.call), 0)
        heads_by_call[site.call] = heads_cached(read // max(tokens, 1), site.qk_width + site.v_width, number)
    return heads_by_call


def _engine_matmul(matmul: WeightMatmul, part: DecoderPart, site: AttentionSite | None, key_heads: int) -> EngineMatmul:
    columns = matmul.weight.meta.shape[0]
    widths = () if site is None or site.latent is not None else (site.qk_width, site.v_width)
    is_key = site is not None and matmul.row < site.row and columns in [key_heads * width for width in widths]
    return EngineMatmul(
        columns=columns,
        depth=matmul.elements // columns,
        weight_format=matmul.weight.meta.dtype,
        dtype=matmul_type(matmul),
        split=Split.REPLICATED,
        key_columns=columns if is_key else 0,
        key_heads=key_heads if is_key else 1,
        part=part,
        is_expansion=matmul.is_expansion,
    )


def _splits(members: Sequence[_Member], site: AttentionSite | None) -> Iterator[Split]:
    """How each matmul of a block is shared."""
    # The last input of a block feeds its last matmul: its rows are split, so its result is a sum over ranks.
    inputs = [member.source for member in members if member.matmul.part is not DecoderPart.ROUTER]
    last = inputs[-1] if inputs else None
    for place, member in enumerate(members):
        later = members[place + 1 :]
        if member.matmul.part is DecoderPart.HEAD:
            yield Split.COLUMNS
        elif member.matmul.part is DecoderPart.ROUTER or _is_onto_latent(member, later, site):
            yield Split.REPLICATED
        elif site is not None:
            yield Split.COLUMNS if member.row < site.row else Split.ROWS
        else:
            yield Split.ROWS if member.source == last and inputs.index(last) > 0 else Split.COLUMNS


def _is_onto_latent(member: _Member, later: Sequence[_Member], site: AttentionSite | None) -> bool:
    """Whether the result is a vector that matmuls of the same attention expand again, and all heads need whole."""
    if site is None or site.latent is None or member.row > site.row:
        return False
    columns = member.matmul.columns
    expanded = [other.matmul.depth for other in later if other.row < site.row]
    return columns == site.latent.cached_width or columns in expanded


def _experts(graph: CallGraph, anatomy: Anatomy) -> Iterator[EngineExperts]:
    ops = ops_of(graph)
    for block in anatomy.experts:
        if anatomy.forward_of_ops[block.row] != FIRST_FORWARD:
            continue
        first, last = (graph.op_kinds[ops.kind[row]] for row in (block.rows[0], block.rows[-1]))
        hidden, inner = first.inputs[0].shape[-1], last.inputs[0].shape[-1]
        yield EngineExperts(
            hidden=hidden,
            inner=inner * tensor_ranks(graph, block),
            experts=block.experts * block.ranks,
            chosen=block.chosen,
            weight_format=first.inputs[1].dtype,
            dtype=expert_type(graph, block),
            is_gated=is_gated(block, hidden, inner),
        )
