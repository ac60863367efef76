"""Which keys a query can see: all, those before it, those in a window or chunk; and how many pairs that makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The keys that the query at position p sees: up to p if `is_causal`, of them the last `window` or its own chunk.

    A window without causality reaches to both sides; at least `window` keys are then visible, so it never counts too
    many. Sparse attention looks at the `chosen` keys that an indexer ranks best, whichever they are, and must keep them
    all. None: no such limit.
    """

    is_causal: bool = False
    window: int | None = None
    chunk: int | None = None
    chosen: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a query far from the start sees fewer keys than there are before it."""
        return self.chunk is not None or self._most is not None

    @property
    def _most(self) -> int | None:
        """The most keys that one query sees, wherever they are."""
        return min((limit for limit in (self.window, self.chosen) if limit is not None), default=None)

    def pairs(self, queries: int, keys: int, context: int | None = None) -> int:
        """Visible pairs of the last `queries` positions; `keys` are held, `context` positions have been seen in all.

        A cache that keeps only a window holds fewer keys than there were positions, and chunks begin where positions
        say: `context` tells where the queries stand, and defaults to `keys`.
        """
        if not self.is_causal:
            return queries * min(keys, self._most or keys)
        end = max(keys, context or keys)
        return min(self._seen_before(end) - self._seen_before(end - queries), queries * keys)

    def _seen_before(self, positions: int) -> int:
        """Visible pairs of the first so many positions."""
        if self.chunk is not None:
            chunks, rest = divmod(positions, self.chunk)
            return chunks * _triangle(self.chunk) + _triangle(rest)
        most = self._most
        if most is not None and positions > most:
            return _triangle(most) + (positions - most) * most
        return _triangle(positions)


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


def declared_span(params: Mapping[str, Any], *, is_causal_op: bool, writes_cache: bool) -> Span:
    """The span of an attention module, by what the op says, what the module's constructor kept, and what it caches.

    A module that declares nothing and adds to the cache that the model hands on is autoregressive: its queries cannot
    see keys that did not exist when their tokens were made.
    """
    declared = params.get("is_causal")
    is_causal = is_causal_op or declared is True or (declared is None and writes_cache)
    layer_type = str(params.get("layer_type", ""))
    window = _positive(params.get("sliding_window")) if layer_type in ("", "sliding_attention") else None
    chunk = _positive(params.get("attention_chunk_size")) if layer_type == "chunked_attention" else None
    return Span(is_causal=is_causal, window=window, chunk=chunk, chosen=_positive(params.get("index_topk")))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
