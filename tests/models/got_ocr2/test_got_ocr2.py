"""GOT-OCR 2.0, the worked example: sizes by hand, FLOPs by torch's own counter, calls by a real run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.graphs.call_checks import call_checks
from llm_perf_opt.harness.phase_runs import run_phases
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.stage_ranges import Unwatched
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.got_ocr2.adapter import GotOcr2Adapter
from llm_perf_opt.models.got_ocr2.options import GotOcr2Workload
from llm_perf_opt.models.got_ocr2.targets import decode_inputs, prefill_inputs

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="the code of the model is in transformers 5"
)

HIDDEN, LAYERS, MLP, VOCABULARY = 1024, 24, 2816, 151_860
VISION, VISION_MLP, HEAD, GRID, WINDOW, NECK = 768, 3072, 64, 64, 14, 256  # twelve blocks, four of them without windows
PARAMETERS = 560_528_640  # 561 million


def tiny_config() -> object:
    return transformers.GotOcr2Config(
        text_config={
            "model_type": "qwen2",
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 37,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        vision_config={
            "num_hidden_layers": 2,
            "output_channels": 16,
            "hidden_size": 32,
            "mlp_dim": 37,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 2,
            "window_size": 5,
            "global_attn_indexes": (1,),
        },
        image_token_index=98,
    )


@pytest.fixture(scope="module")
def prefill() -> object:
    target, _ = GotOcr2Adapter().targets(Workload())
    return WeightlessTracer().trace(target)


def test_the_parameters_of_the_decoder_are_those_of_its_configuration(prefill: object) -> None:
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN + 3 * HIDDEN * MLP + 2 * HIDDEN  # query, key and value have a bias
    decoder = VOCABULARY * HIDDEN + LAYERS * layer + HIDDEN  # the head is tied to the embedding
    costs = {stage.name: stage for stage in stage_costs(prefill).stages}
    assert costs["prefill"].parameters == decoder
    assert costs["projector"].parameters == 9 * NECK * 512 + 9 * 512 * HIDDEN + HIDDEN * HIDDEN + HIDDEN


def vision_block(side: int) -> int:
    """Query, key, value and output, the MLP, two norms, and a table of relative positions for each side."""
    attention = 4 * VISION * VISION + 4 * VISION
    mlp = 2 * VISION * VISION_MLP + VISION_MLP + VISION
    return attention + mlp + 4 * VISION + 2 * (2 * side - 1) * HEAD


def test_the_parameters_of_the_encoder_and_of_the_whole_are_those_of_the_configuration(prefill: object) -> None:
    patches = 3 * 16 * 16 * VISION + VISION
    neck = VISION * NECK + 9 * NECK * NECK + 4 * NECK
    encoder = patches + GRID * GRID * VISION + 8 * vision_block(WINDOW) + 4 * vision_block(GRID) + neck
    costs = stage_costs(prefill)
    assert {stage.name: stage for stage in costs.stages}["vision"].parameters == encoder == 89_670_912
    assert costs.total.parameters == PARAMETERS
    assert "0.56 B parameters" in GotOcr2Adapter.title


def test_torchs_counter_agrees_on_every_stage_at_full_size(prefill: object) -> None:
    config = transformers.GotOcr2Config()
    with torch.device("meta"):
        model = transformers.GotOcr2ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
        pixels, features = torch.zeros(1, 3, 1024, 1024), torch.zeros(1, NECK, GRID, GRID)
        embeds = torch.zeros(1, 256 + 20, HIDDEN)

    def decoder() -> torch.Tensor:
        return model.lm_head(model.model.language_model(inputs_embeds=embeds).last_hidden_state[:, -1:])

    counted = {}
    stages = {
        "vision": lambda: model.model.vision_tower(pixels),
        "projector": lambda: model.model.multi_modal_projector(features),
        "prefill": decoder,
    }
    for name, run in stages.items():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run()
        counted[name] = counter.get_total_flops()
    assert {stage.name: stage.flops for stage in stage_costs(prefill).stages} == counted


def test_the_flops_of_the_decoder_are_two_per_weight_and_token_plus_attention(prefill: object) -> None:
    tokens = 256 + 20
    weights = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * MLP)
    attention = LAYERS * 2 * 2 * tokens * tokens * HIDDEN
    costs = {stage.name: stage for stage in stage_costs(prefill).stages}
    assert costs["prefill"].flops == 2 * tokens * weights + attention + 2 * VOCABULARY * HIDDEN  # one row of logits


def test_torchs_counter_agrees_on_the_whole_of_a_real_run() -> None:
    (target,) = GotOcr2Adapter(tiny_config()).targets(GotOcr2Workload(decode_steps=0, dtype="float32", crops=(2, 1)))
    counted = stage_costs(WeightlessTracer().trace(target)).total.flops
    (again,) = GotOcr2Adapter(tiny_config()).targets(GotOcr2Workload(decode_steps=0, dtype="float32", crops=(2, 1)))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        again.run(again.build())
    assert counted == counter.get_total_flops()


@pytest.mark.parametrize("phase", [0, 1])
def test_weightless_calls_what_a_real_run_calls(phase: int) -> None:
    wanted = GotOcr2Workload(dtype="float32", decode_steps=2, crops=(2, 2), batch=2)
    weightless = WeightlessTracer(device="cpu").trace(GotOcr2Adapter(tiny_config()).targets(wanted)[phase])
    real = HooksTracer().trace(GotOcr2Adapter(tiny_config()).targets(wanted)[phase])
    assert weightless.call_counts == real.call_counts
    assert weightless.edges == real.edges
    assert weightless.output_metadata == real.output_metadata


@pytest.mark.parametrize("option", [{"mode": "base"}, {"image": "10x10"}, {"attention": "flash"}])
def test_what_the_model_cannot_mean_is_refused(option: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        GotOcr2Adapter().targets(GotOcr2Workload.make(**option))


def test_phases_one_after_the_other_make_the_tokens_of_its_own_generate() -> None:
    adapter = GotOcr2Adapter(tiny_config())
    targets = adapter.targets(GotOcr2Workload(prompt_tokens=5, dtype="float32", decode_steps=4))
    model = RealModels(weights="random", device="cpu").model_of(targets[0])
    done = run_phases(model, targets, Unwatched(), device="cpu")
    inputs = targets[0].start(model)
    whole = model.generate(**inputs, do_sample=False, max_new_tokens=5, eos_token_id=-1, pad_token_id=0)
    assert list(done.token_ids) == whole[0, -5:].tolist()
    assert done.cache_tokens == targets[0].workload["context_tokens"] + 4


def test_calls_follow_from_the_configuration_views_and_steps() -> None:
    config: Any = tiny_config()
    targets = GotOcr2Adapter(config).targets(GotOcr2Workload(crops=(2, 2), decode_steps=3))
    checks = call_checks([WeightlessTracer().trace(target) for target in targets])
    vision, text = config.vision_config.num_hidden_layers, config.text_config.num_hidden_layers
    assert [(check.what, check.at_least, check.found) for check in checks] == [
        ("vision blocks", vision, vision),
        ("projector", 1, 1),
        ("decoder layers", text, text),
        ("vision blocks", 0, 0),
        ("decoder layers", 3 * text, 3 * text),
    ]
    assert checks[0].formula.endswith("blocks x 1 batch of 5 views")


def test_the_mask_of_a_decode_step_covers_the_cache_and_the_new_token() -> None:
    """As long as the keys: what the prefill left, and one."""
    model = transformers.GotOcr2ForConditionalGeneration(tiny_config()).eval()
    inputs = prefill_inputs(model.config, views=1, prompt_tokens=4, batch=2, dtype=torch.float32)
    inputs["input_ids"][:, -4:] = 5  # the vocabulary of the tiny model is small
    with torch.inference_mode():
        cache = model(**inputs, use_cache=True).past_key_values
        model(input_ids=torch.full((2, 1), 5), past_key_values=cache)
    step = decode_inputs(inputs["input_ids"].shape[1], batch=2)
    assert step["attention_mask"].shape == (2, cache.get_seq_length())
