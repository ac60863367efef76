from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, TEXT, VISION, write_folder

transformers = pytest.importorskip(
    "transformers", reason="a Hugging Face folder is run by transformers, an optional extra"
)

IS_OLDER = int(transformers.__version__.split(".")[0]) < 5
PROMPT = 24
WIDTH, MLP, LAYERS, WORDS = (
    TEXT["hidden_size"],
    TEXT["intermediate_size"],
    TEXT["num_hidden_layers"],
    TEXT["vocab_size"],
)


def targets_of(folder: Path, config: dict[str, Any], **options: Any) -> tuple[Target, ...]:
    workload = HuggingFaceWorkload.make(**{"prompt_tokens": PROMPT, **options})
    return HuggingFaceAdapter(write_folder(folder, config), False).targets(workload)


def flops(graph: CallGraph) -> dict[str, int | None]:
    return {stage.name: stage.flops for stage in stage_costs(graph).stages}


def decoder_flops(tokens: int, context: int) -> int:
    """Two FLOPs per weight of every linear layer and token, 4 * width per pair of positions, one row of logits."""
    weights = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * MLP)
    return 2 * tokens * weights + LAYERS * 4 * WIDTH * tokens * context + 2 * WIDTH * WORDS


def rotary_flops(positions: int) -> int:
    """Before version 5 the angles of the rotary embedding are a matmul of frequencies and positions."""
    return 2 * (WIDTH // TEXT["num_attention_heads"] // 2) * positions if IS_OLDER else 0


def test_llama_prefill_costs_what_its_sizes_say(tmp_path: Path) -> None:
    prefill, _ = targets_of(tmp_path, LLAMA, attention="eager")
    graph = WeightlessTracer().trace(prefill)
    assert graph.problems() == []
    assert flops(graph) == {"prefill": decoder_flops(PROMPT, PROMPT) + rotary_flops(PROMPT)}


def test_decode_steps_see_a_growing_context(tmp_path: Path) -> None:
    _, decode = targets_of(tmp_path, LLAMA, attention="eager", decode_steps=3)
    graph = WeightlessTracer().trace(decode)
    assert decode.runtime["decode_steps"] == 3
    assert graph.call_counts["lm_head"] == 3
    expected = sum(decoder_flops(1, PROMPT + step) + rotary_flops(1) for step in (1, 2, 3))
    assert flops(graph) == {"decode": expected}


def test_batch_multiplies_the_cost(tmp_path: Path) -> None:
    single, *_ = targets_of(tmp_path, LLAMA, decode_steps=0, attention="eager")
    double, *_ = targets_of(tmp_path, LLAMA, decode_steps=0, attention="eager", batch=2)
    tracer = WeightlessTracer()
    once, twice = flops(tracer.trace(single))["prefill"], flops(tracer.trace(double))["prefill"]
    assert once is not None and twice is not None
    assert twice == 2 * once - rotary_flops(PROMPT)  # the rows share one table of angles


def test_experts_are_called_with_every_token(tmp_path: Path) -> None:
    prefill, decode = targets_of(tmp_path, MIXTRAL)
    tracer = WeightlessTracer()
    assert tracer.trace(prefill).problems() == []
    assert tracer.trace(decode).problems() == []
    assert prefill.runtime["decoder_depth"] == LAYERS


def test_a_vision_language_model_gets_its_placeholders_and_its_stages(tmp_path: Path) -> None:
    prefill, decode = targets_of(tmp_path, LLAVA, image="32x32")
    patches = (VISION["image_size"] // VISION["patch_size"]) ** 2
    assert prefill.workload["modalities"] == "text + image"
    placeholders = 1 if IS_OLDER else patches  # older versions expand one placeholder per image themselves
    assert prefill.workload["inputs"]["input_ids"] == [1, PROMPT + placeholders]
    assert [stage.name for stage in prefill.stages] == ["vision", "projector"]
    graph = WeightlessTracer().trace(prefill)
    costs = flops(graph)
    assert set(costs) == {"vision", "projector", "prefill"}
    assert costs["projector"] == 2 * patches * (VISION["hidden_size"] * WIDTH + WIDTH * WIDTH)
    assert decode.runtime["images"] == 0
    assert flops(WeightlessTracer().trace(decode))["vision"] == 0


def test_an_encoder_decoder_decodes_without_its_encoder(tmp_path: Path) -> None:
    _, decode = targets_of(tmp_path, T5)
    graph = WeightlessTracer().trace(decode)
    assert "encoder" not in graph.call_counts
    assert graph.call_counts["decoder"] == 1


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, LLAVA, T5], ids=lambda config: str(config["model_type"]))
def test_the_same_targets_run_on_real_tensors(tmp_path: Path, config: dict[str, Any]) -> None:
    prefill, decode = targets_of(tmp_path, config, dtype="float32")
    model = prefill.build()
    assert decode.build() is model
    output: Any = prefill.run(model)
    assert bool(torch.isfinite(output.logits).all())
    step: Any = decode.run(model)
    assert step.logits.shape[1] == 1


def test_weights_in_the_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    prefill, *_ = targets_of(tmp_path, LLAMA)
    assert WeightlessTracer().trace(prefill).call_counts["lm_head"] == 1


def test_no_decode_without_a_cache(tmp_path: Path) -> None:
    vit = {"model_type": "vit", **VISION}
    (prefill,) = targets_of(tmp_path, vit, prompt_tokens=None)
    assert (prefill.phase, prefill.workload["decode_steps"]) == ("prefill", 0)


def test_attention_is_built_as_asked(tmp_path: Path) -> None:
    eager, *_ = targets_of(tmp_path, LLAMA, attention="eager")
    fused, *_ = targets_of(tmp_path, LLAMA, attention="sdpa")
    tracer = WeightlessTracer()
    names = [{kind.name for kind in tracer.trace(target).op_kinds} for target in (eager, fused)]
    assert ["aten.softmax.int" in found for found in names] == [True, False]
    assert ["aten.scaled_dot_product_attention.default" in found for found in names] == [False, True]


@pytest.mark.parametrize(
    "options", [{"mode": "gundam"}, {"crops": (2, 3)}, {"attention": "flash"}, {"dtype": "int8"}, {"image": "page.png"}]
)
def test_options_that_cannot_be_met_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        targets_of(tmp_path, LLAMA, **options)


def test_an_image_of_a_size_that_does_not_run_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        targets_of(tmp_path, LLAVA, image="48x64")
    assert "its configuration names 32x32" in str(refused.value)


def test_an_image_for_a_model_without_eyes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="32x32"):
        targets_of(tmp_path, LLAMA, image="32x32")
