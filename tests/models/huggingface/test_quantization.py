"""`quantization_config` in published form: which weights are stored in which format, and what is said of the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.callgraph import CallGraph, Parameter
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.tensor_formats import StoredFormats, is_weight_format
from llm_perf_opt.models.huggingface.quantization import METHODS, names_module, spellings, stored_formats
from tests.core.callgraph.made_graphs import meta

FACTS = json.loads((Path(__file__).parents[2] / "facts" / "quantization_blocks.json").read_text())
BLOCKS: dict[str, dict[str, Any]] = FACTS["blocks"]
MODULES = {
    "model.embed_tokens": "Embedding",
    "model.layers.0.self_attn.q_proj": "Linear",
    "model.layers.0.input_layernorm": "RMSNorm",
    "model.layers.0.mlp.gate": "TopKRouter",
    "model.layers.0.mlp.router": "TopKRouter",
    "model.layers.0.mlp.up_proj": "Linear",
    "model.layers.0.mlp.experts": "Experts",
    "lm_head": "Linear",
}
LINEAR, HEAD, STACK = "model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "model.layers.0.mlp.experts.down_proj"
SHAPES = {
    "model.embed_tokens.weight": (500, 64),
    LINEAR: (64, 64),
    "model.layers.0.input_layernorm.weight": (64,),
    "model.layers.0.mlp.gate.weight": (8, 64),
    "model.layers.0.mlp.experts.gate_up_proj": (8, 192, 64),
    STACK: (8, 64, 96),
    HEAD: (500, 64),
}


def model(**modules: str) -> CallGraph:
    """A decoder with one layer of experts; `modules` replaces or adds classes of modules."""
    return CallGraph(
        module_types={**MODULES, **modules},
        parameters=tuple(
            Parameter(name=name, meta=meta(*shape), storage=row) for row, (name, shape) in enumerate(SHAPES.items())
        ),
    )


def read(block: Any, folder: Path = Path("nowhere")) -> StoredFormats:
    return stored_formats(folder, {"model_type": "toy", "quantization_config": block}, model())


def compressed(weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights, **group}}}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_published_block_says_how_each_weight_is_stored(name: str) -> None:
    fact = BLOCKS[name]
    found = read(fact["block"])
    assert found.warnings == ()
    assert found.origin == fact["block"]["quant_method"]
    assert (found.weights.get(LINEAR), found.weights.get(HEAD), found.weights.get(STACK)) == (
        fact["linear"],
        fact["head"],
        fact["experts"],
    )
    assert found.cache == fact.get("cache")
    assert all(map(is_weight_format, found.weights.values()))


@pytest.mark.parametrize("name", BLOCKS)
def test_embeddings_norms_and_routers_are_never_converted(name: str) -> None:
    kept = ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.gate.weight")
    assert not set(kept) & read(BLOCKS[name]["block"]).weights.keys()


def test_every_method_has_a_published_block() -> None:
    known = {fact["block"]["quant_method"] for fact in BLOCKS.values()}
    assert set(METHODS) - known == {"auto-round", "modelopt_fp4"}  # other names for gptq and modelopt


def test_a_file_of_model_optimizer_beside_the_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(FACTS["hf_quant_config"]["document"]))
    found = stored_formats(tmp_path, {"model_type": "toy"}, model())
    assert (found.origin, found.weights.get(LINEAR), found.weights.get(HEAD)) == ("modelopt", "nvfp4", None)
    assert found.cache == "float8_e4m3fn"


def test_such_a_file_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(UsageError, match="does not say how weights are quantised"):
        stored_formats(tmp_path, {"model_type": "toy"}, model())


def test_mixed_precision_of_model_optimizer_names_layers(tmp_path: Path) -> None:
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
    }
    document = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(document))
    found = stored_formats(tmp_path, {"model_type": "toy"}, model())
    assert (found.weights[LINEAR], found.weights[STACK], found.weights.get(HEAD)) == ("fp8", "nvfp4", None)


def test_a_folder_without_a_block_says_nothing() -> None:
    assert stored_formats(Path("nowhere"), {"model_type": "toy"}, model()) == StoredFormats()


def test_the_block_of_a_language_model_inside_a_larger_one_counts() -> None:
    fields = {"model_type": "toy", "text_config": {"quantization_config": BLOCKS["awq"]["block"]}}
    assert stored_formats(Path("nowhere"), fields, model()).weights[LINEAR] == "int4-g128"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ({"quant_method": "quark"}, "none of: awq, gptq"),
        ({}, "none of: awq, gptq"),
        ({"quant_method": "awq"}, "KeyError"),
        ({"quant_method": "awq", "bits": 9, "group_size": 128}, "int9-g128"),
        ({"quant_method": "bitsandbytes"}, "none of its rules fits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": [["wqkv"]]}, "fits"),
        (compressed({"num_bits": 8, "strategy": "odd"}), "odd"),
        (compressed({"num_bits": 8, "strategy": "channel"}, targets=["re:("]), "unterminated subpattern"),
        ({"quant_method": "modelopt", "quant_algo": "W3"}, "W3"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_a_warning_and_never_a_silent_sixteen_bits(block: dict[str, Any], why: str) -> None:
    found = read(block)
    assert found.weights == {}
    assert len(found.warnings) == 1
    assert why in found.warnings[0]
    assert "All weights are counted in the type of the trace" in found.warnings[0]


def test_gptq_converts_only_the_modules_it_names() -> None:
    block = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 64,
        "modules_in_block_to_quantize": [["self_attn.q_proj"]],
    }
    assert read(block).weights == {LINEAR: "int4-g64-sym"}


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("lm_head", "lm_head", True),
        ("mlp.gate", "model.layers.3.mlp.gate", True),
        ("mlp.gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.self_attn.q_proj", True),
        ("model.layers.1", "model.layers.11.self_attn.q_proj", False),
        ("visual", "model.visual.blocks.0.attn.qkv", True),
        ("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", True),
        ("model.layers.*.self_attn", "model.layers.3.mlp.up_proj", False),
        ("*.mlp.down_proj", "model.layers.3.mlp.down_proj", True),
        ("re:.*lm_head", "language_model.lm_head", True),
        ("re:.*q_proj$", "model.layers.3.self_attn.q_proj", True),
        ("re:q_proj", "model.layers.3.self_attn.q_proj", False),  # an expression begins at the beginning
        ("language_model.model.layers.3.mlp", "model.language_model.layers.3.mlp.up_proj", True),
        ("model.layers.3.mlp", "model.language_model.layers.3.mlp.up_proj", True),
        ("visual.merger", "model.visual.merger.mlp.0", True),
        ("backbone.layers.4.mixer", "model.layers.4.mixer.in_proj", True),
        ("backbone.layers.4.mixer", "model.layers.40.mixer.in_proj", False),
    ],
)
def test_a_pattern_means_a_module_and_what_is_inside(pattern: str, path: str, is_meant: bool) -> None:
    assert names_module(pattern, spellings(path, is_stack=False)) is is_meant


@pytest.mark.parametrize(
    ("pattern", "is_meant"),
    [
        ("model.layers.3.mlp.experts", True),
        ("re:.*experts.*", True),
        ("re:.*mlp\\.experts\\.\\d+\\.up_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", False),  # the dense layers of such a model
        ("shared_experts", False),
    ],
)
def test_a_stack_goes_by_the_names_of_its_experts_too(pattern: str, is_meant: bool) -> None:
    names = spellings("model.layers.3.mlp.experts.gate_up_proj", is_stack=True)
    assert names_module(pattern, names) is is_meant


def test_exclusions_that_fit_nothing_are_counted_and_named() -> None:
    patterns = ["lm_head", "e_score_correction_bias", "decoder.layers.0", "re:.*mtp.*", "mlp.experts.0.w2"]
    block = {"quant_method": "fp8", "modules_to_not_convert": patterns}
    (warning,) = read(block).warnings
    assert "3 of 5 exclusions" in warning
    assert "(e_score_correction_bias, decoder.layers.0, re:.*mtp.*)" in warning
    stage = stored_formats(Path("nowhere"), {"quantization_config": block}, model(), has_all_layers=False)
    assert stage.warnings == ()
