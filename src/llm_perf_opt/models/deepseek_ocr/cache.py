"""The key-value cache that the decoder layers share during one forward."""

from __future__ import annotations

import torch
from torch import Tensor

PastKeyValues = tuple[tuple[Tensor, Tensor], ...]
"""Per layer, keys and values, each `[batch, heads, tokens, head_dim]`: the form in which a cache crosses forwards."""


class KvCache:
    """Keys and values of the layers seen so far; grows by concatenation, so each step reads and writes all of it."""

    def __init__(self, past: PastKeyValues) -> None:
        self.key_cache = [key for key, _ in past]
        self.value_cache = [value for _, value in past]

    @property
    def num_tokens(self) -> int:
        """Tokens held before this forward: 0 for an empty cache."""
        return self.key_cache[0].shape[-2] if self.key_cache else 0

    def update(self, layer_idx: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append to one layer and return all of its keys and values; the layers of a new cache come in order."""
        if layer_idx == len(self.key_cache):
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def past_key_values(self) -> PastKeyValues:
        """What the next forward takes."""
        return tuple(zip(self.key_cache, self.value_cache, strict=True))
