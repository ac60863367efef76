"""What a serving engine holds on one device: its share of the weights, and the cache of a sequence by its length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.analyses.memory.kv_cache import TracedKvCache, kv_cache
from llm_perf_opt.analyses.necessary.decoder_needs import decoder_needs
from llm_perf_opt.analyses.serving.engines import MemoryTerm, ServingEngine, capability_major
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once
from llm_perf_opt.core.callgraph.records import Parameter
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.tensor_formats import tensor_bytes, untransposed, weight_format

BLOCK_TOKENS = 16  # vLLM's default block


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayers:
    """Layers whose caches grow alike: so many bytes for each token, and for no more than `window` tokens."""

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


@found_once
def cache_per_sequence(
    graph: CallGraph, *, ranks: int = 1, block_tokens: int = BLOCK_TOKENS
) -> CachePerSequence | None:
    """The cache of the decoder whose step `graph` is, on one of `ranks` devices that share every layer.

    Key-value heads are dealt out as far as they go: with more ranks than heads each head is held by several. A latent
    cache has nothing to divide and is whole on every rank. What a decoder keeps of its encoder has the traced length
    and does not grow. None: the step keeps nothing.
    """
    cache = kv_cache([graph])
    if cache is None:
        return None
    needs, shares = decoder_needs(graph), min(ranks, key_value_heads(cache) or 1)
    growing: dict[int | None, int] = {}
    fixed = -(-needs.state_bytes // ranks)
    for layer in needs.attentions:
        held = layer.layers * layer.cached_bytes
        held = held if layer.latent is not None else -(-held // shares)
        if layer.encoded_keys is None:
            window = layer.span.window or layer.span.chunk
            growing[window] = growing.get(window, 0) + held
        else:
            fixed += held * layer.encoded_keys
    return CachePerSequence(
        layers=tuple(CacheLayers(bytes_per_token=held, window=window) for window, held in growing.items()),
        state_bytes=fixed,
        block_tokens=block_tokens,
    )


def key_value_heads(cache: TracedKvCache) -> int | None:
    """Heads of the cached tensors `[batch, heads, tokens, width]`, the fewest of any layer; None for other shapes."""
    heads = [tensor.shape[1] for tensor in cache.tensors if len(tensor.shape) == 4]
    return min(heads, default=None)


MXFP4 = "mxfp4"
_MXFP4_GROUP = 32
_SCALE_ROWS, _SCALE_COLUMNS = 256, 2  # to which the Hopper layout of Triton's kernels fills the scales up
_HOPPER = 9
_POSITIONS = "max_seq_len_cached"  # what transformers calls the length of a rotary table
_TABLE_VALUE_BYTES = 2


def engine_weights(
    graph: CallGraph, device: Device, *, engine: ServingEngine, ranks: int = 1
) -> tuple[MemoryTerm, ...]:
    """The parts of an engine's weights on one of `ranks` tensor-parallel devices, without those that are empty.

    Matrices and stacks are divided evenly, vectors are whole on every rank. Tied weights count once.
    """
    weights = list(_weights(graph))
    on_hopper = engine.copies_mxfp4_scales and capability_major(device) == _HOPPER
    terms = (
        MemoryTerm(name="weights as stored", bytes=sum(_share(weight, ranks) for weight in weights)),
        MemoryTerm(name="rotary tables", bytes=sum(_rotary_tables(graph).values())),
        MemoryTerm(
            name="swizzled copy of the mxfp4 scales, biases in float32",
            bytes=sum(_mxfp4_copies(weights)) // ranks if on_hopper else 0,
        ),
    )
    return tuple(term for term in terms if term.bytes)


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


def _share(weight: Parameter, ranks: int) -> int:
    whole = tensor_bytes(weight.meta)
    return whole if len(weight.meta.shape) < 2 else -(-whole // ranks)


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
