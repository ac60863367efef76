"""State-space and recurrent models, alone and in hybrids with attention and experts."""

from __future__ import annotations

from .model_case import TinyModel, ids, ones

_PROMPT = {"input_ids": ids(2, 9), "attention_mask": ones(2, 9)}
_LAYERS = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}

RECURRENT = (
    TinyModel(
        model="MambaForCausalLM",
        config="MambaConfig",
        family="state space",
        sizes=_LAYERS | {"state_size": 8, "time_step_rank": 4},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="Mamba2ForCausalLM",
        config="Mamba2Config",
        family="state space",
        sizes=_LAYERS | {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        inputs=_PROMPT,
    ),
    TinyModel(
        model="JambaForCausalLM",
        config="JambaConfig",
        family="state space",
        sizes=_LAYERS
        | {
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        inputs=_PROMPT,
        experts="eager",
        routed=True,
    ),
    TinyModel(
        model="RwkvForCausalLM",
        config="RwkvConfig",
        family="recurrent",
        sizes={"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
        inputs={"input_ids": ids(2, 9)},
    ),
    TinyModel(
        model="RecurrentGemmaForCausalLM",
        config="RecurrentGemmaConfig",
        family="recurrent",
        sizes=_LAYERS
        | {
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "lru_width": 32,
            "attention_window_size": 4,
        },
        inputs=_PROMPT,
    ),
    TinyModel(
        model="Qwen3NextForCausalLM",
        config="Qwen3NextConfig",
        family="state space",
        sizes=_LAYERS
        | {
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"],
        },
        inputs=_PROMPT,
        experts="eager",
        routed=True,
    ),
)
