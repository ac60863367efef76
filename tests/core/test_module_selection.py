"""Families of modules, and the words that choose modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.module_selection import (
    FAMILIES,
    FAMILY_NAMES,
    HEAVY_NAMES,
    ModuleSelection,
    PathPattern,
    chosen_stages,
    family_of,
    is_heavy,
    recorded_paths,
    unknown_terms,
)

# Classes of torch, transformers, vLLM and DeepSeek-OCR, and what a person calls them.
NAMED = {
    "linear": "Linear QKVParallelLinear Linear4bit NonDynamicallyQuantizableLinear Conv1D GroupedLinearLayer",
    "conv": "Conv1d Conv2d Conv3d ConvTranspose2d MimiConv1d EfficientNetDepthwiseConv2d",
    "attention": "NoTPAttention Attention LlamaFlashAttention2 MultiheadAttention KimiLinearDeltaAttention Attn",
    "norm": "LayerNorm RMSNorm DeepseekV2RMSNorm LayerNorm2d LayerNormfp32 BatchNorm2d FalconH1RMSNormGated",
    "embedding": "Embedding CLIPVisionEmbeddings PatchEmbed Gemma2TextScaledWordEmbedding",
    "position": "LlamaRotaryEmbedding SinusoidalPositionalEmbedding LearnedPositionEmbedding PositionalEncoding",
    "activation": "GELU SiLU QuickGELU ReLU6 Softmax NewGELUActivation PytorchGELUTanh Sigmoid",
    "mlp": "DeepseekV2MLP MLPBlock NoTPFeedForward SolarOpenMLP SeedOssMLP T5DenseGatedActDense SparseTop2MLP",
    "experts": "DeepseekV2MoE MixtralSparseMoeBlock MixtralExperts KimiLinearMoE FusedMoE SwitchTransformersSparseMLP",
    "router": "MoEGate MixtralTopKRouter DeepseekV3TopkRouter Llama4Router",
    "recurrent": "LSTM GRUCell Mamba2Mixer Qwen3NextGatedDeltaNet",
    "projector": "MlpProjector LlavaMultiModalProjector Idefics3Connector Qwen2_5_VLPatchMerger",
    "block": "Block DeepseekV2DecoderLayer NoTPTransformerBlock GPT2Block CLIPEncoderLayer",
    None: "DeepseekOCRModel ImageEncoderViT Sequential ModuleList SeamlessM4TEncoder SolarOpenModel Identity",
}


@pytest.mark.parametrize(
    ("class_name", "family"), [(name, family) for family, names in NAMED.items() for name in names.split()]
)
def test_the_family_of_a_class(class_name: str, family: str | None) -> None:
    assert family_of(class_name) == family
    assert is_heavy(class_name) == (family in HEAVY_NAMES)


def test_parameters_decide_where_the_name_says_nothing() -> None:
    assert family_of("Odd", {"in_features": 4, "out_features": 8}) == "linear"
    assert family_of("Odd", {"in_channels": 4, "out_channels": 8, "kernel_size": [3, 3]}) == "conv"
    assert family_of("Odd", {"in_features": 4}) is None
    assert family_of("GatedMLP", {"in_features": 4, "out_features": 8}) == "mlp"


def test_every_family_has_a_meaning_of_its_own() -> None:
    assert len(set(FAMILY_NAMES)) == len({family.meaning for family in FAMILIES}) == len(FAMILIES)


def test_the_page_lists_the_families_with_their_meanings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how" / "reading-the-graph.md").read_text(encoding="utf-8")
    rows = [f"| `{family.name}` | {family.meaning} | {'yes' if family.is_heavy else ''} |" for family in FAMILIES]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize(
    ("pattern", "path", "before"),
    [
        ("model.layers.*.mlp", "model.layers.7.mlp", ""),
        ("layers.*.mlp", "model.layers.7.mlp", "model"),
        ("layers.*.mlp", "model.layers.7.mlp.gate", None),
        ("blocks.[0-11].attn", "model.sam_model.blocks.11.attn", "model.sam_model"),
        ("blocks.[0-11].attn", "model.sam_model.blocks.12.attn", None),
        ("layers.[0,2,5]", "layers.2", ""),
        ("layers.[0,2,5]", "layers.3", None),
        ("experts.expert_[0-7].wi", "mlp.experts.expert_3.wi", "mlp"),
        ("towers.[left,right]", "towers.right", ""),
        ("sam_model.**", "model.sam_model.neck.0", "model"),
        ("sam_model.**", "model.sam_model", None),
        ("**.mlp", "a.b.mlp", "a"),
        ("fc*.w*t", "fc1.weight", ""),
        ("layers.[0-3]", "layers.x", None),
        ("layers.*", "", None),
    ],
)
def test_a_pattern_is_compared_with_the_end_of_a_path(pattern: str, path: str, before: str | None) -> None:
    assert PathPattern(pattern).rest_of(path) == before


def test_a_pattern_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="too long"):
        PathPattern("a." * 6000)


MODULES: list[tuple[str, str, dict[str, Any]]] = [
    ("", "Model", {}),
    ("tower", "Tower", {}),
    ("tower.0", "Block", {}),
    ("tower.0.proj", "Linear", {}),
    ("layers.0.attn", "NoTPAttention", {}),
    ("layers.0.attn.q", "Linear", {}),
    ("layers.0.norm", "RMSNorm", {}),
    ("head", "Linear", {}),
]


@pytest.mark.parametrize(
    ("terms", "chosen"),
    [
        ("linear", ["tower.0.proj", "layers.0.attn.q", "head"]),
        ("LINEAR", ["tower.0.proj", "layers.0.attn.q", "head"]),
        ("notpattention", ["layers.0.attn"]),
        ("head", ["head"]),
        ("layers.*.norm,attention", ["layers.0.attn", "layers.0.norm"]),
        ("layers.[0,1].norm", ["layers.0.norm"]),
        ("heavy", ["tower.0.proj", "layers.0.attn", "layers.0.attn.q", "layers.0.norm", "head"]),
    ],
)
def test_families_classes_names_and_patterns(terms: str, chosen: list[str]) -> None:
    selection = ModuleSelection.parse(terms)
    assert [path for path, class_name, params in MODULES if selection.takes(path, class_name, params)] == chosen
    assert selection.terms_without(MODULES) == []
    assert ModuleSelection.parse(str(selection)) == selection


def test_a_term_that_names_nothing_is_found_and_a_near_one_suggested() -> None:
    missing = ModuleSelection.parse(["linear", "Atention"]).terms_without(MODULES)
    assert missing == ["Atention"]
    assert "attention" in str(unknown_terms(missing, ("Linear", "NoTPAttention")).fix)
    with pytest.raises(UsageError, match="empty"):
        ModuleSelection.parse("linear,,conv")


def test_stages_by_name() -> None:
    assert chosen_stages("sam, clip", ["sam", "clip", "prefill"]) == ("sam", "clip")
    with pytest.raises(UsageError, match="the stages are: sam, prefill") as refused:
        chosen_stages("samm", ["sam", "prefill"])
    assert "samm" in refused.value.what


def test_a_filtered_trace_always_records_the_root_and_where_a_stage_begins() -> None:
    only = ModuleSelection.parse("linear")
    assert recorded_paths(MODULES, {"tower": "vision"}, "prefill", only, ()) == {
        "", "tower", "tower.0.proj", "layers.0.attn.q", "head",
    }  # fmt: skip
    assert recorded_paths(MODULES, {"tower": "vision"}, "prefill", only, ("vision",)) == {"", "tower", "tower.0.proj"}
    assert recorded_paths(MODULES, {"tower": "vision"}, "prefill", None, ("prefill",)) == {
        "", "tower", "layers.0.attn", "layers.0.attn.q", "layers.0.norm", "head",
    }  # fmt: skip
