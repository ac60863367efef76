"""What a serving engine holds on one rank: its share of the weights, and the cache of a sequence by its length.

A trace is of the whole model, or of one rank of a plan. Either gives the whole sizes, from which every rank's share
follows by the engine's own rule, so one plan has one account however it was traced.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once
from llm_perf_opt.core.callgraph.records import Parameter, TensorMeta
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.parallel_plan import ParallelPlan, layer_pattern, plan_in, replicated_in
from llm_perf_opt.core.tensor_formats import tensor_bytes, untransposed, weight_format
from llm_perf_opt.costs.memory.kv_cache import kv_cache
from llm_perf_opt.costs.necessary.decoder_needs import decoder_needs
from llm_perf_opt.serving.engines import MemoryTerm, ServingEngine, capability_major
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, Split, engine_blocks

BLOCK_TOKENS = 16  # vLLM's default block


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayers:
    """Layers with caches that grow alike: this many bytes for each token, and for no more than `window` tokens."""

    bytes_per_token: int  # all of these layers
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePerSequence:
    """Layers that grow, and what does not: recurrent states, keys of an encoder.

    Memory is handed out in blocks of `block_tokens`. Layers with a window keep a window; an engine that prefills in
    chunks keeps up to one chunk more while it does.
    """

    layers: tuple[CacheLayers, ...]
    state_bytes: int = 0
    block_tokens: int = BLOCK_TOKENS

    def bytes_at(self, context: int) -> int:
        """What a sequence of `context` tokens takes, in whole blocks."""
        return self.state_bytes + sum(
            layer.bytes_per_token * self._in_blocks(min(context, layer.window or context)) for layer in self.layers
        )

    def tokens_in(self, room: int, context: int) -> int | None:
        """How many tokens `room` bytes hold, in whole blocks, in sequences of `context` tokens.

        Where every layer grows the length does not matter. None where a sequence takes nothing, so that nothing limits.
        """
        each = self.bytes_at(context)
        if not each:
            return None
        return max(0, room) * self._in_blocks(context) // each // self.block_tokens * self.block_tokens

    @property
    def is_bounded(self) -> bool:
        """Whether a sequence stops growing: it has only windows and states."""
        return all(layer.window is not None or not layer.bytes_per_token for layer in self.layers)

    def _in_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens) * self.block_tokens


def traced_plan(graph: CallGraph) -> ParallelPlan:
    """The plan of the rank that was traced; one device where the whole model was traced."""
    return plan_in(graph.deployment) or ParallelPlan()


def cache_per_sequence(
    graph: CallGraph, *, plan: ParallelPlan, stage: StageLayers | None = None
) -> CachePerSequence | None:
    """The cache of a decoder on one rank of a plan; `graph` is one of its steps.

    Key-value heads are dealt out as far as they go: with more ranks than heads each head is held by several. A latent
    cache has nothing to divide and is replicated on every rank. What a decoder keeps of its encoder has the traced
    length and does not grow. None: the step keeps nothing.
    """
    if kv_cache([graph]) is None:
        return None
    blocks = engine_blocks(graph)
    own, layers = (1, 1) if stage is None else (stage.end - stage.begin, stage.layers)
    growing: dict[int | None, int] = {}
    fixed = -(-decoder_needs(graph).state_bytes * traced_plan(graph).tp // plan.tp)
    for layer in blocks.attentions:
        held = layer.layers * layer.cached_bytes // min(plan.tp, blocks.key_heads(layer))
        if layer.encoded_keys is None:
            window = layer.span.window or layer.span.chunk
            growing[window] = growing.get(window, 0) + held
        else:
            fixed += held * layer.encoded_keys
    return CachePerSequence(
        layers=tuple(
            CacheLayers(bytes_per_token=held * own // layers, window=window) for window, held in growing.items()
        ),
        state_bytes=fixed * own // layers,
    )


MXFP4 = "mxfp4"
_MXFP4_GROUP = 32
_SCALE_ROWS, _SCALE_COLUMNS = 256, 2  # to which the Hopper layout of Triton's kernels fills the scales up
_HOPPER = 9
_POSITIONS = "max_seq_len_cached"  # what transformers calls the length of a rotary table
_TABLE_VALUE_BYTES = 2


def engine_weights(
    graph: CallGraph, device: Device, *, engine: ServingEngine, plan: ParallelPlan, decode: CallGraph | None = None
) -> tuple[MemoryTerm, ...]:
    """The parts of an engine's weights on one rank of a plan, without those that are empty. Tied weights count once.

    Matrices are divided evenly among the ranks of tensor parallelism, stacks of experts also among the groups with
    attention of their own; vectors are replicated on every rank, and so is what `decode` shows that ranks repeat.
    """
    stage = stage_of(graph, plan)
    weights = [weight for weight in _weights(graph) if stage is None or stage.holds(weight)]
    on_hopper = engine.copies_mxfp4_scales and capability_major(device) == _HOPPER
    stages = 1 if stage is None else plan.pp
    repeated = 0 if decode is None or plan.tp == 1 else sum(_repeated(engine_blocks(decode), plan.tp)) // stages
    terms = (
        MemoryTerm(name="weights as stored", bytes=repeated + sum(_shares(graph, weights, plan))),
        MemoryTerm(name="rotary tables", bytes=sum(_rotary_tables(graph).values())),
        MemoryTerm(
            name="swizzled copy of the mxfp4 scales, biases in float32",
            bytes=sum(_mxfp4_copies(weights)) * traced_plan(graph).tp // plan.tp if on_hopper else 0,
        ),
    )
    return tuple(term for term in terms if term.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """The layers of one pipeline stage, [begin, end) of `layers`, and the names of the weights it holds."""

    begin: int
    end: int
    layers: int
    names: frozenset[str]

    def holds(self, weight: Parameter) -> bool:
        """Whether the weight is one of this stage's."""
        return weight.name in self.names


@found_once
def stage_of(graph: CallGraph, plan: ParallelPlan) -> StageLayers | None:
    """The stage of `plan.rank` in a model that was traced whole; None: there is one, or the trace is of a stage itself.

    As many layers for each, and what is left over to those before the last: vllm/distributed/utils.py, get_pp_indices.
    Weights before the layers belong to the first stage, weights behind them to the last.
    """
    if plan.pp == 1 or traced_plan(graph).pp > 1:
        return None
    numbers = {weight.name: _layer_number(weight.name) for weight in graph.parameters}
    lists = Counter(at[0] for at in numbers.values() if at is not None)
    decoder = max(lists, key=lambda name: (lists[name], name), default="")
    of_layer = {name: at[1] for name, at in numbers.items() if at is not None and at[0] == decoder}
    layers, place = max(of_layer.values(), default=-1) + 1, plan.stage_of(plan.rank or 0)
    counts = [layers // plan.pp + (0 < plan.pp - 1 - index <= layers % plan.pp) for index in range(plan.pp)]
    begin = sum(counts[:place])
    order = [weight.name for weight in graph.parameters]
    behind = max((order.index(name) for name in of_layer), default=0)
    names = [name for name, number in of_layer.items() if begin <= number < begin + counts[place]]
    rest = [(index, name) for index, name in enumerate(order) if name not in of_layer]
    names += [name for index, name in rest if place == (plan.pp - 1 if index > behind else 0)]
    return StageLayers(begin=begin, end=begin + counts[place], layers=layers, names=frozenset(names))


def _layer_number(name: str) -> tuple[str, int] | None:
    """`model.layers.3.mlp.up_proj.weight` -> (`model.layers`, 3)."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return None if place is None else (".".join(parts[:place]), int(parts[place]))


def trained_context(graph: CallGraph) -> int | None:
    """Positions that the longest rotary table holds; None without one."""
    return max((positions for positions, _ in _tables(graph)), default=None)


def _weights(graph: CallGraph) -> Iterator[Parameter]:
    """Every weight once; buffers are tables that the engine makes in its own way."""
    seen: set[int] = set()
    for parameter in graph.parameters:
        if parameter.is_buffer or parameter.storage in seen:
            continue
        if parameter.storage >= 0:
            seen.add(parameter.storage)
        yield parameter


def _shares(graph: CallGraph, weights: Sequence[Parameter], plan: ParallelPlan) -> Iterator[int]:
    """Bytes of each weight on one rank; a trace of a rank that does not say what it shares is taken as it is."""
    traced, replicated = traced_plan(graph), replicated_in(graph.deployment)
    for weight in weights:
        held = tensor_bytes(weight.meta)
        if traced.fsdp > 1 or (traced.tp > 1 and replicated is None):
            yield held
            continue
        is_whole = bool(replicated) and layer_pattern(weight.name) in (replicated or ())
        unshared_bytes = held if is_whole else held * traced.tp
        dimensions = len(weight.meta.shape)
        if dimensions < 2:
            yield unshared_bytes
            continue
        is_expert = dimensions == 3 or ".experts." in weight.name  # a stack of all, or one of them
        ranks = plan.tp * (plan.attention_dp if is_expert else 1)
        is_cut = traced.tp > 1 and not is_whole
        shape = None if is_cut else _share(weight.meta.shape, ranks, is_whole_experts=plan.ep > 1)
        # A scale of the whole matrix is not divided with it.
        yield -(-unshared_bytes // ranks) if shape is None else tensor_bytes(replace(weight.meta, shape=shape))


def _share(shape: tuple[int, ...], ranks: int, *, is_whole_experts: bool) -> tuple[int, ...] | None:
    """The part of a matrix, or of a stack of experts, on one of these ranks; None: it cannot be cut evenly."""
    cut = 1 if len(shape) == 3 and not is_whole_experts else 0
    if shape[cut] % ranks:
        return None
    return (*shape[:cut], shape[cut] // ranks, *shape[cut + 1 :])


def _repeated(blocks: EngineBlocks, ranks: int) -> Iterator[int]:
    """What a rank holds above its even share: replicated matmuls, and key heads where there are fewer than ranks."""
    for matmul in blocks.matmuls:
        columns = matmul.columns if matmul.split is Split.REPLICATED else matmul.key_columns
        shares = 1 if matmul.split is Split.REPLICATED else min(ranks, matmul.key_heads)
        matrix = TensorMeta(shape=(columns, matmul.depth), dtype=matmul.weight_format, device="cuda")
        matrix_bytes = matmul.layers * tensor_bytes(matrix) if columns else 0
        yield matrix_bytes // shares - matrix_bytes // ranks


def _rotary_tables(graph: CallGraph) -> dict[tuple[int, int], int]:
    """(positions, width) -> bytes: sines and cosines for every position; layers that rotate alike share a table.

    Source: vllm/model_executor/layers/rotary_embedding: `cos_sin_cache` is `[positions, rotary width]`, in the type of
    the model.
    """
    return {(positions, width): positions * width * _TABLE_VALUE_BYTES for positions, width in _tables(graph)}


def _tables(graph: CallGraph) -> Iterator[tuple[int, int]]:
    frequencies = {
        parameter.name.rpartition(".")[0]: parameter.meta.shape[-1]
        for parameter in graph.parameters
        if parameter.is_buffer and parameter.name.endswith("inv_freq") and parameter.meta.shape
    }
    for path, count in frequencies.items():
        positions = graph.constructor_params.get(path, {}).get(_POSITIONS)
        if isinstance(positions, int):
            yield positions, 2 * count


def _mxfp4_copies(weights: list[Parameter]) -> Iterator[int]:
    """Scales once more in the layout of the kernels, filled up to whole tiles, and biases in float32.

    Sources: vllm quantization/mxfp4.py (the scales of the checkpoint stay registered; `w13_bias.to(torch.float32)`) and
    triton_kernels `HopperMXScaleLayout` (rows to a multiple of 256 for 8 warps, groups to a multiple of 2).
    """
    stacks = {weight.name: weight for weight in weights if untransposed(weight.meta.dtype) == MXFP4}
    for weight in stacks.values():
        *stack, rows, columns = weight.meta.shape
        if weight_format(weight.meta.dtype).is_transposed:
            rows, columns = columns, rows
        groups = -(-columns // _MXFP4_GROUP)
        yield math.prod(stack) * _up_to(rows, _SCALE_ROWS) * _up_to(groups, _SCALE_COLUMNS)
    for weight in weights:
        if weight.name.removesuffix("_bias") in stacks and weight.name not in stacks:
            yield 4 * math.prod(weight.meta.shape) - tensor_bytes(weight.meta)


def _up_to(count: int, step: int) -> int:
    return -(-count // step) * step
