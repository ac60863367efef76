"""A decoder layer, its norm, and the mask that keeps tokens from seeing what follows them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_perf_opt.models.deepseek_ocr.attention import ATTENTION_CLASSES, KvCache
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig
from llm_perf_opt.models.deepseek_ocr.moe import DeepseekV2MLP, DeepseekV2MoE


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
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_value: KvCache | None = None,
    ) -> tuple[Tensor, KvCache] | tuple[Tensor]:
        """The new hidden states, and the cache, if one was given, with this layer's keys and values added.

        Without positions the tokens are the first ones of a sequence.
        """
        if position_ids is None:
            position_ids = torch.arange(hidden_states.shape[1], device=hidden_states.device).unsqueeze(0)
        attended, cache = self.self_attn(
            self.input_layernorm(hidden_states), attention_mask, position_ids, past_key_value or KvCache(())
        )
        hidden_states = hidden_states + attended
        hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return (hidden_states,) if past_key_value is None else (hidden_states, cache)


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
