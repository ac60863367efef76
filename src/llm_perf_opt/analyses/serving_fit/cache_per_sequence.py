"""What the cache of one sequence takes on one device, as a function of its length."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.analyses.memory import KvCache, kv_cache
from llm_perf_opt.analyses.necessary import decoder_needs
from llm_perf_opt.callgraph.graph import CallGraph

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

    @property
    def is_bounded(self) -> bool:
        """Whether a sequence stops growing: it has only windows and states."""
        return all(layer.window is not None or not layer.bytes_per_token for layer in self.layers)

    def _in_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens) * self.block_tokens


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


def key_value_heads(cache: KvCache) -> int | None:
    """Heads of the cached tensors `[batch, heads, tokens, width]`, the fewest of any layer; None for other shapes."""
    heads = [tensor.shape[1] for tensor in cache.tensors if len(tensor.shape) == 4]
    return min(heads, default=None)
