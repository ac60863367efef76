"""The adapter turns workloads into targets, fills in what was left out, and refuses what makes no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import KEY as EXPECTED
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

TINY = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())


def test_the_default_is_an_a4_page_with_crops() -> None:
    prefill, decode = DeepSeekOcrAdapter().targets(Workload())
    assert prefill.workload == decode.workload
    assert prefill.workload == {
        "image": "1240x1754",
        "mode": "gundam",
        "crops": [2, 3],
        "prompt_tokens": 20,
        "image_tokens": 903,
        "context_tokens": 924,
        "decode_steps": 1,
        "batch": 1,
        "dtype": "bfloat16",
        "attention": "eager",
    }
    facts = [{name: fact for name, fact in one.runtime.items() if name != EXPECTED} for one in (prefill, decode)]
    assert facts[0] == {
        "images": 1,
        "crops_per_image": [6],
        "images_spatial_crop": [[2, 3]],
        "decoder_depth": 12,
        "decode_steps": 0,
    }
    assert facts[1] == {
        "images": 0,
        "crops_per_image": [],
        "images_spatial_crop": [],
        "decoder_depth": 12,
        "decode_steps": 1,
    }
    assert len(prefill.runtime[EXPECTED]) == 7 and len(decode.runtime[EXPECTED]) == 4
    assert [stage.name for stage in prefill.stages] == ["sam", "clip", "projector"]


def test_targets_describe_themselves_in_json() -> None:
    for target in TINY.targets(DeepSeekOcrWorkload(image="90x130")):
        described = {"workload": dict(target.workload), "runtime": dict(target.runtime)}
        assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize("mode", ["tiny", "small", "base", "large", "gundam"])
def test_both_phases_run_on_one_build(mode: str) -> None:
    workload = DeepSeekOcrWorkload(image="90x130", mode=mode, prompt_tokens=3, decode_steps=2, batch=2, dtype="float32")
    prefill, decode = TINY.targets(workload)
    model = prefill.build()
    assert decode.build() is model
    assert not model.training
    tokens = prefill.workload["context_tokens"]
    assert prefill.run(model).logits.shape == (2, tokens, 160)
    assert decode.run(model)[0][0].shape == (2, 2, tokens + 2, 16)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_weights_and_cache_have_the_dtype_asked_for(name: str) -> None:
    prefill, decode = TINY.targets(DeepSeekOcrWorkload(image="90x130", mode="tiny", dtype=name))
    model = prefill.build()
    dtype = getattr(torch, name)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    output = prefill.run(model)
    assert output.logits.dtype == torch.float32
    assert output.past_key_values[0][0].dtype == dtype
    assert decode.run(model)[0][0].dtype == dtype
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("steps", [1, 3])
def test_the_cache_is_there_when_a_decode_begins(steps: int) -> None:
    """Two layers of keys and values, 2 heads of 16 in 4 bytes; filling them is no work of a step."""
    decode = WeightlessTracer().trace(
        TINY.targets(DeepSeekOcrWorkload(image="90x130", dtype="float32", decode_steps=steps))[1]
    )
    assert decode.calls is not None and decode.storages is not None
    assert min(decode.calls.first_op) == 0
    rows = zip(decode.storages.bytes, decode.storages.origin, strict=True)
    layers = TINY.config.decoder.num_hidden_layers
    cache = 2 * layers * 2 * decode.workload["context_tokens"] * 16 * 4
    token_and_positions = 8 + 8 * steps
    assert sum(size for size, origin in rows if origin == "input") == cache + token_and_positions


@pytest.mark.parametrize("batch", [1, 3])
def test_every_page_of_a_batch_has_pixels_of_its_own(batch: int) -> None:
    """The global view of tiny mode and zeros in the place of tiles, 32 x 32 pixels each."""
    workload = DeepSeekOcrWorkload(image="90x130", mode="tiny", dtype="float32", batch=batch, decode_steps=0)
    (prefill,) = TINY.targets(workload)
    (phase,) = run_memory([WeightlessTracer().trace(prefill)]).phases
    tokens = prefill.workload["context_tokens"]
    pixels, ids_and_mask, crops = 2 * 3 * 32 * 32 * 4, tokens * (8 + 1), 2 * 8
    assert phase.input_bytes == batch * (pixels + ids_and_mask + crops)


def test_without_decode_steps_there_is_only_prefill() -> None:
    assert [target.phase for target in TINY.targets(DeepSeekOcrWorkload(image="90x130", decode_steps=0))] == ["prefill"]


def test_forced_crops_imply_the_mode_that_has_them() -> None:
    prefill = TINY.targets(DeepSeekOcrWorkload(image="90x130", crops=(3, 1)))[0]
    assert prefill.workload["mode"] == "gundam"
    assert prefill.workload["crops"] == [3, 1]
    assert prefill.runtime["crops_per_image"] == [3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "huge"}, "no mode named 'huge'"),
        ({"attention": "paged"}, "attention cannot be 'paged'"),
        ({"dtype": "int3"}, "dtype cannot be 'int3'"),
        ({"mode": "base", "crops": (2, 3)}, "has no crops"),
        ({"crops": (0, 3)}, "crops cannot be 0"),
        ({"decode_steps": -1}, "decode_steps cannot be -1"),
        ({"prompt_tokens": -1}, "prompt_tokens cannot be -1"),
        ({"batch": 0}, "batch cannot be 0"),
        ({"image": "missing.png"}, "Cannot read 'missing.png'"),
    ],
)
def test_nonsense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TINY.targets(DeepSeekOcrWorkload(**given))
