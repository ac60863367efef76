"""Tiny models of many sorts, run for real: every op has a price, and the sum is torch's where torch can count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.ops.table import price
from tests.costs.recorded_kinds import recorded_kinds

transformers = pytest.importorskip("transformers", reason="the models come from the optional extra hf")

TEXT = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SEQ2SEQ = {"vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
SOUND = {"conv_dim": (16, 16), "conv_kernel": (4, 3), "conv_stride": (2, 2), "num_conv_pos_embedding_groups": 4}


def tokens(**more: Any) -> dict[str, Any]:
    return {"input_ids": torch.arange(24).reshape(2, 12) + 3, **more}


def image(side: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, side, side)}


MODELS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "encoder": ("Bert", TEXT, tokens),
    "decoder": ("Llama", {**TEXT, "num_key_value_heads": 2}, tokens),
    "old decoder": ("GPT2", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}, tokens),
    "experts": ("Mixtral", {**TEXT, **EXPERTS}, tokens),
    "latent attention": ("DeepseekV3", {**TEXT, **LATENT, **ROUTED, "num_key_value_heads": 4}, tokens),
    "state space": ("Mamba", {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2}, tokens),
    "encoder-decoder": (
        "Bart",
        {**SEQ2SEQ, **HEADS},
        lambda: tokens(decoder_input_ids=torch.arange(10).reshape(2, 5) + 3),
    ),
    "speech to text": (
        "Whisper",
        {**SEQ2SEQ, **HEADS, "num_mel_bins": 8, "max_source_positions": 20, "pad_token_id": 0},
        lambda: {"input_features": torch.randn(1, 8, 40), "decoder_input_ids": torch.tensor([[3, 4, 5]])},
    ),
    "sound": ("Wav2Vec2", {**TEXT, **SOUND}, lambda: {"input_values": torch.randn(1, 400)}),
    "sound codec": (
        "Encodec",
        {"num_filters": 4, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16},
        lambda: {"input_values": torch.randn(1, 1, 640)},
    ),
    "image": ("ViT", {**VISION, "num_attention_heads": 4}, image),
    "convolutions": ("ConvNext", {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}, image),
    "windows": ("Swin", {"image_size": 32, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4}, image),
    "image and text": (
        "CLIP",
        {"text_config": TEXT, "vision_config": {**VISION, "num_attention_heads": 4}, "projection_dim": 16},
        lambda: {**tokens(), **image()},
    ),
    "segmentation": ("Segformer", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}, lambda: image(64)),
}
# Torch's counter has no formula for the grouped matmul, nor for the CPU's recurrent kernel.
TORCH_CANNOT_COUNT = {"experts", "latent attention", "sound codec"}


@pytest.fixture(scope="module", autouse=True)
def transformers_has_added_its_own_method() -> None:
    """Its first model gives `torch.nn.Module` a method for good; that is not for the tests below to answer for."""
    transformers.BertModel(transformers.BertConfig(**TEXT))


def flops_of(run: Callable[[], object], *, composites: bool) -> int:
    prices = [(kind.name, price(kind)) for kind in recorded_kinds(run, composites=composites)]
    assert [op for op, cost in prices if cost is None] == []
    return sum(cost.flops for _, cost in prices if cost is not None)


@pytest.mark.parametrize("sort", MODELS)
def test_every_op_has_a_price_and_the_sum_is_what_torch_counts(sort: str) -> None:
    name, settings, inputs = MODELS[sort]
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{name}Config")(**settings)
    configuration._attn_implementation = "eager"
    model = getattr(transformers, f"{name}Model")(configuration).eval()
    given = inputs()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**given)
    counted = flops_of(lambda: model(**given), composites=True)
    assert counted == flops_of(lambda: model(**given), composites=False) > 0
    if sort in TORCH_CANNOT_COUNT:
        assert counted > counter.get_total_flops()
    else:
        assert counted == counter.get_total_flops()
