"""A training step without weights is the step that runs for real: FLOPs by torch's counter, ops, and the peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")

from benchmarks.training.exactness import SHRUNK, kept, row
from benchmarks.training.shrunk_models import ShrunkModel, shrunk_models
from benchmarks.training.tiny_steps import Comparison, compare, run_real, run_weightless, tiny_target
from llm_perf_opt.core.training_setup import TrainingSetup
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

CASES = {case.model: case for case in TINY_MODELS}
# Decoders, an encoder, an encoder-decoder, routed experts in one grouped matmul, a vision and a multimodal model.
CHEAP = (
    *("LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel"),
    *("BloomForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration", "MixtralForCausalLM"),
    *("DeepseekV3ForCausalLM", "ViTForImageClassification", "Qwen2VLForConditionalGeneration"),
)
SETUPS: dict[str, dict[str, Any]] = {
    "eager": {"attention": "eager"},
    "bfloat16": {"dtype": "bfloat16"},
    "full": {"recompute": "full"},
    "reentrant": {"recompute": "full-reentrant"},
    "selective": {"recompute": "selective"},
    "fused": {"optimizer": "adamw-fused"},
    "loop": {"optimizer": "adamw-loop"},
    "sgd": {"optimizer": "sgd"},
    "adafactor": {"optimizer": "adafactor"},
    "autocast": {"autocast": "bfloat16"},
    "accumulation": {"accumulation": 3},
    "lora": {"method": "lora", "lora_rank": 4},
    "lora-full": {"method": "lora", "lora_rank": 4, "recompute": "full"},
}
CHECKPOINTED = tuple(name for name in CHEAP if name not in ("ViTForImageClassification",))


def comparison(case: TinyModel, **options: Any) -> Comparison:
    """Both runs of a step. Routed experts run as one grouped matmul: its ops do not depend on the routing."""
    setup = TrainingSetup(device="cpu", **{"dtype": "float32", **options})
    inputs = case.make_inputs()
    if any(ending in case.model for ending in ("ForCausalLM", "MaskedLM", "LMHead")):
        inputs["labels"] = inputs["input_ids"].clone()
    chosen = case if case.experts is None else replace(case, experts="grouped_mm")
    target = tiny_target(case.model, lambda: _built(chosen, setup), inputs, setup)
    return compare(run_weightless(target), run_real(target))


def _built(case: TinyModel, setup: TrainingSetup) -> Any:
    model = case.build().to(getattr(__import__("torch"), setup.dtype))
    if setup.attention == "eager":
        model.set_attn_implementation("eager")
    return model


def assert_same(both: Comparison) -> None:
    assert both.problems == ()
    assert both.flops_differ == {}
    assert both.ops_differ == {}
    assert abs(both.peak_error) <= 0.01, (both.peak_bytes, both.real_peak_bytes)


@pytest.mark.parametrize("model", CHEAP)
def test_a_full_step_of_many_architectures_is_the_real_one(model: str) -> None:
    assert_same(comparison(CASES[model]))


@pytest.mark.parametrize("setup", SETUPS)
def test_every_way_to_train_is_the_real_one(setup: str) -> None:
    if "lora" in setup:
        pytest.importorskip("peft", reason="LoRA is the library's own code")
    assert_same(comparison(CASES["LlamaForCausalLM"], **SETUPS[setup]))


def test_a_step_is_exact_to_a_few_bytes() -> None:
    both = comparison(CASES["LlamaForCausalLM"])
    assert abs(both.peak_bytes - both.real_peak_bytes) <= 8  # a scalar more or less
    assert both.views_differ == {}


def test_adapters_of_stacked_experts_hold_no_memory_twice() -> None:
    """They are put over the weight in each forward, by `set_` of a tensor onto itself."""
    pytest.importorskip("peft", reason="LoRA is the library's own code")
    assert_same(comparison(CASES["OlmoeForCausalLM"], method="lora", lora_rank=4, recompute="full"))


# Some of the classes that run for real; `python -m benchmarks.training.exactness` has them all.
RAN = {record["model"] for record in kept() if record["setup"] == SHRUNK and "peak_bytes" in record}
SMALL = [case for case in shrunk_models() if case.model in RAN][::14]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.model)
def test_a_step_of_a_class_made_small_is_the_real_one(case: ShrunkModel) -> None:
    found = row(case, SHRUNK)
    assert not {"refused", "fails"} & found.keys(), found
    assert not found["gradients_differ"]
    assert found["gradients"] > 0
    assert abs(found["peak_bytes"] / found["real_peak_bytes"] - 1) <= 0.01
