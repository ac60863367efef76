"""The model types that are compared, by kind, in the sizes of their default configurations: mostly released ones."""

from __future__ import annotations

SUBJECTS = {
    "dense": (
        "llama", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "cohere", "starcoder2", "gpt2", "gpt_neox",
        "opt", "falcon", "t5", "bart", "bert", "modernbert",
    ),
    "mixture of experts": (
        "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "olmoe", "phimoe", "glm4_moe",
        "granitemoe",
    ),
    "vision and language": ("llava", "qwen2_vl", "qwen2_5_vl", "paligemma", "gemma3", "idefics3", "internvl", "clip"),
    "audio": ("whisper", "wav2vec2", "hubert", "qwen2_audio", "musicgen", "clap"),
    "state space": ("mamba", "mamba2", "falcon_mamba", "recurrent_gemma", "jamba", "bamba", "zamba2"),
    "vision": ("vit", "swin", "convnext", "detr", "sam"),
}  # fmt: skip
KIND_OF = {model_type: kind for kind, model_types in SUBJECTS.items() for model_type in model_types}
