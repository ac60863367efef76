"""The decoder: its layers, norm and causal mask, attention in three variants, and the mixture of experts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig


class DeepseekV2RMSNorm(nn.Module):
    """Divides by the root mean square, in float32; the weight is applied in the input's dtype."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Same shape and dtype out."""
        wide = hidden_states.float()
        mean_square = wide.pow(2).mean(dim=-1, keepdim=True)
        normed = wide * torch.rsqrt(mean_square + self.variance_epsilon)
        return self.weight * normed.to(hidden_states.dtype)


class DeepseekV2DecoderLayer(nn.Module):
    """Attention and feed-forward; the first `first_k_dense_replace` layers are dense, the others mix experts."""

    def __init__(self, config: DecoderConfig, layer_idx: int, attention: str) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.layer_idx = layer_idx
        self.self_attn = ATTENTION_CLASSES[attention](config, layer_idx)
        self.mlp = (
            DeepseekV2MLP(config.hidden_size, config.intermediate_size)
            if layer_idx < config.first_k_dense_replace
            else DeepseekV2MoE(config)
        )
        self.input_layernorm = DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DeepseekV2RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_ids: Tensor, past_key_value: KvCache
    ) -> tuple[Tensor, KvCache]:
        """The new hidden states, and the cache with this layer's keys and values added."""
        attended, past_key_value = self.self_attn(
            self.input_layernorm(hidden_states), attention_mask, position_ids, past_key_value
        )
        hidden_states = hidden_states + attended
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return hidden_states, past_key_value


def causal_mask(embeds: Tensor, held_tokens: int, padding_mask: Tensor | None) -> Tensor | None:
    """The additive mask `[batch, 1, new, held + new]` in the dtype of `embeds`: 0 where a token may look.

    `padding_mask` is `[batch, held + new]` with 0 for padding. A single new token without padding sees everything and
    needs no mask.
    """
    batch, new, _ = embeds.shape
    if new == 1 and padding_mask is None:
        return None
    lowest = torch.finfo(embeds.dtype).min
    mask = torch.full((new, held_tokens + new), lowest, dtype=embeds.dtype, device=embeds.device)
    mask = mask.triu(diagonal=held_tokens + 1)[None, None].expand(batch, 1, -1, -1)
    return mask if padding_mask is None else mask.masked_fill(padding_mask[:, None, None] == 0, lowest)


class DeepseekV2MLP(nn.Module):
    """A gated MLP: one expert, the shared experts taken together, or the whole of a dense layer."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Applied to each token alone."""
        output: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return output


class MoEGate(nn.Module):
    """The router: softmax over all experts in float32, the best `top_k` per token, weights not renormalised."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.n_routed_experts = config.n_routed_experts
        self.top_k = config.num_experts_per_tok
        self.routed_scaling_factor = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids and weights, each `[tokens, top_k]`."""
        tokens = hidden_states.flatten(0, -2)
        scores = F.linear(tokens.float(), self.weight.float()).softmax(dim=-1, dtype=torch.float32)
        weights, expert_ids = torch.topk(scores, self.top_k, dim=-1, sorted=False)
        return expert_ids, weights * self.routed_scaling_factor


class DeepseekV2MoE(nn.Module):
    """Routed experts plus shared experts that see every token; inference only."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.n_routed_experts = config.n_routed_experts
        self.n_shared_experts = config.n_shared_experts
        self.num_experts_per_tok = config.num_experts_per_tok
        width = config.moe_intermediate_size
        self.experts = nn.ModuleList(DeepseekV2MLP(config.hidden_size, width) for _ in range(config.n_routed_experts))
        self.gate = MoEGate(config)
        self.shared_experts = DeepseekV2MLP(config.hidden_size, width * config.n_shared_experts)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[batch, tokens, hidden]`, same shape out."""
        expert_ids, weights = self.gate(hidden_states)
        routed = self.moe_infer(hidden_states.flatten(0, -2), expert_ids, weights)
        shared: Tensor = self.shared_experts(hidden_states)
        return routed.view(hidden_states.shape) + shared

    def moe_infer(self, tokens: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
        """Sort rows by expert, run each expert that has any on its slice, and put the rows back."""
        hits = expert_ids.new_zeros(expert_ids.shape[0], self.n_routed_experts).scatter_(1, expert_ids, 1)
        rows_per_expert = hits.sum(dim=0).cpu().numpy()
        order = expert_ids.flatten().argsort()
        rows = tokens[order // self.num_experts_per_tok]
        outputs = []
        start = 0
        for expert, count in zip(self.experts, rows_per_expert, strict=True):
            if count:
                outputs.append(expert(rows[start : start + count]))
                start += count
        sorted_outputs = torch.cat(outputs)
        by_token = torch.empty_like(sorted_outputs)
        by_token[order] = sorted_outputs
        weighted = by_token.view(*expert_ids.shape, -1).to(weights.dtype).mul_(weights.unsqueeze(-1))
        return weighted.sum(dim=1).to(tokens.dtype)


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
