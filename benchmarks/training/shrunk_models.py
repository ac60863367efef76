"""Tiny architectures made by transformers itself: each class of a language model with its default sizes made small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.breadth.tiny_models import TINY_MODELS

MOST_PARAMETERS = 5 * 10**7
# Names that configurations give their sizes -> the size of a tiny model.
SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "n_vocab", "codebook_size"), 160),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim", "model_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size", "d_inner", "encoder_ffn_dim",
                     "decoder_ffn_dim", "shared_expert_intermediate_size", "moe_intermediate_size",
                     "expert_ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size",
                     "moe_shared_expert_intermediate_size", "shared_intermediate_size"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "attention_head_size", "v_head_dim", "qk_nope_head_dim",
                     "swa_head_dim", "global_head_dim", "swa_v_head_dim"), 16),
    "qk_rope_head_dim": 16,
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_sequence_length"), 128),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace",
                     "moe_num_shared_experts"), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "linear_num_value_heads", "linear_num_key_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 16),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention_window_size", "window_size"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    "lru_width": 64, "attention_window_size": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrunkModel:
    """One class, and the type of its configuration."""

    model: str
    model_type: str
    experts: str | None = None

    def build(self) -> torch.nn.Module:
        """A fresh model; what has too many parameters though all known sizes are small is refused."""
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        config, made = shrunk(CONFIG_MAPPING[self.model_type]), getattr(transformers, self.model)
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in made(config).parameters())
        if parameters > MOST_PARAMETERS:
            raise ValueError(f"{parameters:,} parameters: sizes of its own that are not made small here")
        torch.manual_seed(0)
        model: torch.nn.Module = made(config)
        return model.eval()

    def make_inputs(self) -> dict[str, Any]:
        """Two rows of token ids, which are their own labels."""
        ids = torch.arange(2 * 16).reshape(2, 16) % 97 + 10
        return {"input_ids": ids, "labels": ids.clone()}


def shrunk_models() -> Iterator[ShrunkModel]:
    """Every class of a causal or a masked language model that no tiny model is written down for."""
    from transformers.models.auto import modeling_auto

    seen = {case.model for case in TINY_MODELS}
    kinds: tuple[Mapping[str, Any], ...] = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
    for names in kinds:
        for model_type, classes in names.items():
            model = classes if isinstance(classes, str) else classes[0]
            if model not in seen:
                seen.add(model)
                yield ShrunkModel(model=model, model_type=model_type)


def shrunk(config_class: type[Any]) -> Any:
    """A small configuration: every size that the default one has."""
    usual = config_class()
    chosen: dict[str, Any] = {
        name: size
        for name, size in SIZES.items()
        if isinstance(getattr(usual, name, None), int) and not isinstance(getattr(usual, name), bool)
    }
    if "qk_rope_head_dim" in chosen and "head_dim" in chosen:
        chosen["head_dim"] = chosen["qk_rope_head_dim"]  # what is rotated
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(usual, name, None), int):
            chosen[name] = min(getattr(usual, name), 3)
    kinds = getattr(usual, "layer_types", None)
    if isinstance(kinds, list) and kinds:
        chosen["layer_types"] = (sorted(set(kinds)) * 2)[:2]
    return config_class(**chosen)
