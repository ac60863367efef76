"""The blueprint has the names, shapes and classes of the released model."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from tests.models.deepseek_ocr.facts import fact

RELEASED_DECODER_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rope_theta",
    "rms_norm_eps",
    "first_k_dense_replace",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "routed_scaling_factor",
    "bos_token_id",
)


@pytest.fixture(scope="module")
def model() -> DeepseekOCRForCausalLM:
    with torch.device("meta"):
        return DeepseekOCRForCausalLM(DeepSeekOcrConfig())


def test_every_state_dict_entry_has_the_released_name_shape_and_place(model: DeepseekOCRForCausalLM) -> None:
    released = fact("structure")["state_dict"]
    assert len(released) == 2711
    assert [(name, list(entry.shape)) for name, entry in model.state_dict().items()] == list(
        map(tuple, released.items())
    )


def test_every_module_has_the_released_path_class_and_place(model: DeepseekOCRForCausalLM) -> None:
    released = fact("structure")["modules"]
    assert len(released) == 4083
    assert [(path, type(module).__name__) for path, module in model.named_modules()] == list(released.items())


def test_parameter_count(model: DeepseekOCRForCausalLM) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_336_106_240


@pytest.mark.parametrize(("attention", "name"), [("sdpa", "LlamaSdpaAttention"), ("flash", "LlamaFlashAttention2")])
def test_other_attention_changes_only_the_attention_class(attention: str, name: str) -> None:
    config = DeepSeekOcrConfig.tiny()
    with torch.device("meta"):
        eager, other = DeepseekOCRForCausalLM(config), DeepseekOCRForCausalLM(config, attention)
    assert [
        name if type(module).__name__ == "LlamaAttention" else type(module).__name__ for module in eager.modules()
    ] == [type(module).__name__ for module in other.modules()]
    assert list(eager.state_dict()) == list(other.state_dict())


def test_the_tiny_twin_has_every_kind_of_module(model: DeepseekOCRForCausalLM) -> None:
    with torch.device("meta"):
        twin = DeepseekOCRForCausalLM(DeepSeekOcrConfig.tiny())
    assert {type(module) for module in twin.modules()} == {type(module) for module in model.modules()}
    assert sum(parameter.numel() for parameter in twin.parameters()) < 100_000


def test_the_default_configuration_is_the_released_one() -> None:
    released, config = fact("config"), DeepSeekOcrConfig()
    for name in RELEASED_DECODER_SIZES:
        assert getattr(config.decoder, name) == released[name], name
    assert config.decoder.num_attention_heads == released["num_key_value_heads"]
    sam, clip = released["vision_config"]["width"]["sam_vit_b"], released["vision_config"]["width"]["clip-l-14-224"]
    assert (config.sam.hidden_size, config.sam.num_layers, config.sam.num_heads) == (
        sam["width"],
        sam["layers"],
        sam["heads"],
    )
    assert list(config.sam.global_attn_indexes) == sam["global_attn_indexes"]
    assert list(config.sam.downsample_channels) == sam["downsample_channels"]
    assert (config.clip.hidden_size, config.clip.num_layers, config.clip.num_heads) == (
        clip["width"],
        clip["layers"],
        clip["heads"],
    )
    assert (config.clip.image_size, config.clip.patch_size) == (clip["image_size"], clip["patch_size"])
    assert config.projector_input_size == released["projector_config"]["input_dim"]


def test_sizes_that_fix_shapes_can_be_read_from_the_modules(model: DeepseekOCRForCausalLM) -> None:
    attention = model.get_submodule("model.layers.3.self_attn")
    experts = model.get_submodule("model.layers.3.mlp")
    windowed, whole = model.get_submodule("model.sam_model.blocks.0"), model.get_submodule("model.sam_model.blocks.2")
    assert (attention.hidden_size, attention.num_heads, attention.head_dim) == (1280, 10, 128)
    assert (experts.n_routed_experts, experts.num_experts_per_tok) == (64, 6)
    assert (windowed.window_size, whole.window_size) == (14, 0)
