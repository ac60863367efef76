"""Closed forms of a released folder: its own sizes, and a refusal that says what the formulas do not cover."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.models.deepseek_ocr.closed_forms import ReleasedForms, closed_forms
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig, DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

PAGE = DeepSeekOcrWorkload(mode="base", prompt_tokens=20, decode_steps=3)
DECODER = {"num_hidden_layers": 3, "n_routed_experts": 16, "num_experts_per_tok": 2, "vocab_size": 1000}
WIDTHS = {
    "sam_vit_b": {"width": 768, "layers": 12, "heads": 12, "global_attn_indexes": [2, 5, 8, 11]},
    "clip-l-14-224": {"width": 1024, "layers": 24, "heads": 16, "image_size": 224, "patch_size": 14},
}


def folder(place: Path, **changed: Any) -> ReleasedForms:
    config = {"model_type": "DeepseekOCR", "vision_config": {"image_size": 1024, "width": WIDTHS}, **changed}
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ReleasedForms(place)


def test_the_sizes_are_those_of_the_folder(tmp_path: Path) -> None:
    found = folder(tmp_path, **DECODER).closed_forms(PAGE)
    config = replace(DeepSeekOcrConfig(), decoder=DecoderConfig(**DECODER))
    assert found == closed_forms(config, PAGE)
    assert [stage.stage for stage in found] == ["sam", "clip", "projector", "prefill", "decode"]
    # three layers of 273 + 21 tokens: projections, angles and pairs, a dense MLP, two routers with two experts and
    # two shared ones, and the head
    tokens, width = 294, 1280
    dense, sparse = 6 * width * 6848, 2 * (2 * width * 16 + 6 * width * 896 * (2 + 2))
    layers = 3 * (tokens * 8 * width**2 + tokens * 128 + 4 * tokens**2 * width) + tokens * (dense + sparse)
    assert found[3].flops == layers + 2 * tokens * width * 1000


def test_the_released_sizes_give_the_figures_of_the_registered_model(tmp_path: Path) -> None:
    forms = folder(tmp_path)
    assert forms.closed_forms(PAGE) == closed_forms(DeepSeekOcrConfig(), PAGE)
    assert forms.describe(PAGE)["context_tokens"] == 294


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"use_mla": True}, "use_mla is True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"num_attention_heads": 10, "num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ({"hidden_size": 640}, "hidden_size is 640 in config.json, and the projector puts out 1280"),
        (
            {"vision_config": {"width": {**WIDTHS, "sam_vit_b": {"layers": 6}}}},
            "sam.num_layers is 6 in config.json, and the code builds 12",
        ),
    ],
)
def test_a_configuration_that_the_formulas_do_not_cover_is_refused(
    changed: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        folder(tmp_path, **changed).closed_forms(PAGE)
    assert why in str(refused.value.why)
