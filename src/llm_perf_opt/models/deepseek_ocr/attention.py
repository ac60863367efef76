"""The decoder's attention in three variants that differ only in how scores meet values, and the cache they share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig

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
        """Append to one layer and return all of its keys and values; the layers of a new cache come in order.

        A layer that runs alone begins a cache of its own.
        """
        if layer_idx >= len(self.key_cache):
            self.key_cache.append(key)
            self.value_cache.append(value)
            return key, value
        self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
        self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

    def past_key_values(self) -> PastKeyValues:
        """What the next forward takes."""
        return tuple(zip(self.key_cache, self.value_cache, strict=True))


class LlamaRotaryEmbedding(nn.Module):
    """Cosines and sines of the rotation angles, computed in float32 and handed on in the caller's dtype."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.base = base
        exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        self.register_buffer("inv_freq", base**-exponent, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Two `[batch, tokens, head_dim]` tensors; of `x` only the dtype matters."""
        frequencies = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        angles = (frequencies @ position_ids[:, None, :].float()).transpose(1, 2)
        both_halves = torch.cat([angles, angles], dim=-1)
        return both_halves.cos().to(x.dtype), both_halves.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of a head by its position's angle; `x` is `[batch, heads, tokens, head_dim]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(1)


class LlamaAttention(nn.Module):
    """Eager attention: the score matrix is written to memory, softmax runs in float32."""

    def __init__(self, config: DecoderConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.hidden_size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config.head_dim, config.rope_theta)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_ids: Tensor, past_key_value: KvCache
    ) -> tuple[Tensor, KvCache]:
        """Attend to the cache and to the new tokens, which join the cache."""
        query, key, value = (
            self._by_head(projection(hidden_states)) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = self.rotary_emb(value, position_ids)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = past_key_value.update(self.layer_idx, key, value)
        attended = self._attend(query, key, value, attention_mask).transpose(1, 2)
        output: Tensor = self.o_proj(attended.flatten(2))
        return output, past_key_value

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores + mask
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value


class LlamaSdpaAttention(LlamaAttention):
    """One fused op with the same additive mask as the eager variant, hence the same FLOPs."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class LlamaFlashAttention2(LlamaAttention):
    """Flash attention in structure: one fused causal op and no mask tensor.

    Torch's own kernel stands in for the flash-attn package, which needs a GPU to import. New tokens must fill an empty
    cache or come one at a time, because torch aligns a causal rectangle to its first column.
    """

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        new, held = query.shape[-2], key.shape[-2]
        if mask is not None or new not in (1, held):
            raise ValueError(f"flash attention here takes no mask and 1 or {held} new tokens, not {new}")
        return F.scaled_dot_product_attention(query, key, value, is_causal=new > 1)


ATTENTION_CLASSES: dict[str, type[LlamaAttention]] = {
    "eager": LlamaAttention,
    "sdpa": LlamaSdpaAttention,
    "flash": LlamaFlashAttention2,
}
