"""Tiny models under a parallel plan: written down once, run by real processes and by one weightless rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

PREFILL_TOKENS = 24
DECODE_TOKEN = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCase:
    """One model, one plan. `sizes` are as transformers names them: `tp_size`, `ep_size`, `fsdp_size`, `pp_size`."""

    name: str
    model: str
    config: str
    fields: Mapping[str, Any]
    sizes: Mapping[str, int]
    has_image: bool = False

    @property
    def world_size(self) -> int:
        """Experts are spread over the ranks of the other axes and add none."""
        return self.sizes.get("tp_size", 1) * self.sizes.get("fsdp_size", 1) * self.sizes.get("pp_size", 1)

    def build(self) -> Any:
        """The whole model, small enough for a fraction of a second."""
        import transformers

        config = getattr(transformers, self.config)(**self.fields)
        return getattr(transformers, self.model)._from_config(config, dtype=torch.bfloat16).eval()

    def prompt(self) -> dict[str, torch.Tensor]:
        """What the prefill reads; the same on every rank."""
        tokens = torch.arange(PREFILL_TOKENS)[None] % 40 + 10
        if not self.has_image:
            return {"input_ids": tokens}
        tokens[:, 1:5] = 60
        kinds = (tokens == 60).long()
        return {
            "input_ids": tokens,
            "mm_token_type_ids": kinds,
            "pixel_values": torch.ones(16, 96, dtype=torch.bfloat16),
            "image_grid_thw": torch.tensor([[1, 4, 4]]),
        }

    def next_token(self) -> dict[str, torch.Tensor]:
        """What the decode step reads beside the cache."""
        return {"input_ids": torch.tensor([[DECODE_TOKEN]])}


_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
_MIXTRAL = _LLAMA | {"num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}
_QWEN3_MOE = _LLAMA | {
    "num_hidden_layers": 2,
    "head_dim": 8,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
_QWEN_VL = {
    "text_config": _LLAMA
    | {
        "num_hidden_layers": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    },
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "out_hidden_size": 64,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
    "image_token_id": 60,
    "video_token_id": 61,
    "vision_start_token_id": 62,
    "vision_end_token_id": 63,
}


def _llama(name: str, **sizes: int) -> PlanCase:
    return PlanCase(name=name, model="LlamaForCausalLM", config="LlamaConfig", fields=_LLAMA, sizes=sizes)


PLAN_CASES = (
    _llama("llama tp2", tp_size=2),
    _llama("llama tp4", tp_size=4),
    _llama("llama fsdp2", fsdp_size=2),
    _llama("llama pp2", pp_size=2),
    _llama("llama tp2 fsdp2", tp_size=2, fsdp_size=2),
    PlanCase(
        name="llama tied tp2",
        model="LlamaForCausalLM",
        config="LlamaConfig",
        fields=_LLAMA | {"tie_word_embeddings": True},
        sizes={"tp_size": 2},
    ),
    PlanCase(
        name="mixtral tp2", model="MixtralForCausalLM", config="MixtralConfig", fields=_MIXTRAL, sizes={"tp_size": 2}
    ),
    PlanCase(
        name="qwen3_moe tp2 ep2",
        model="Qwen3MoeForCausalLM",
        config="Qwen3MoeConfig",
        fields=_QWEN3_MOE,
        sizes={"tp_size": 2, "ep_size": 2},
    ),
    PlanCase(
        name="mixtral fsdp2 ep2",
        model="MixtralForCausalLM",
        config="MixtralConfig",
        fields=_MIXTRAL,
        sizes={"fsdp_size": 2, "ep_size": 2},
    ),
    PlanCase(
        name="qwen2_5_vl tp2",
        model="Qwen2_5_VLForConditionalGeneration",
        config="Qwen2_5_VLConfig",
        fields=_QWEN_VL,
        sizes={"tp_size": 2},
        has_image=True,
    ),
)
