"""A prefill and a decode one after the other make the tokens that the model's own `generate` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.harness.phase_runs import run_phases
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.harness.stage_ranges import Unwatched
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from tests.models.huggingface.folders import LLAMA, LLAVA, MIXTRAL, T5, write_folder

NEW_TOKENS = 6
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {"prompt_tokens": 9}),
    "mixtral": (MIXTRAL, {"prompt_tokens": 9, "batch": 2}),
    "llava": (LLAVA, {"image": "32x32", "prompt_tokens": 9}),
    "t5": (T5, {"prompt_tokens": 9}),
}


def sharpened(model: torch.nn.Module) -> None:
    """Weights under which the tokens differ from step to step."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_its_own_generate(tmp_path: Path, name: str) -> None:
    config, asked = MODELS[name]
    adapter = HuggingFaceAdapter(write_folder(tmp_path, config), False)
    workload = make_workload(adapter, **asked, dtype="float32", decode_steps=NEW_TOKENS - 1)
    targets = adapter.targets(workload)
    model = RealModels(weights="random", device="cpu").model_of(targets[0])
    sharpened(model)
    torch.manual_seed(0)  # pixels are noise
    done = run_phases(model, targets, Unwatched(), device="cpu")
    torch.manual_seed(0)
    inputs: Any = targets[0].start(model)
    start = inputs.pop("decoder_input_ids", None)
    generated = model.generate(  # type: ignore[operator]
        **{key: value for key, value in inputs.items() if isinstance(value, torch.Tensor)},
        **({} if start is None else {"decoder_start_token_id": int(start[0, 0])}),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=-1,
        pad_token_id=0,
    )
    assert list(done.token_ids) == generated[0, -NEW_TOKENS:].tolist()
    assert len(set(done.token_ids)) > 1
    assert done.decode_steps == NEW_TOKENS - 1


def test_a_vision_tower_that_runs_in_decode_is_refused(tmp_path: Path) -> None:
    adapter = HuggingFaceAdapter(write_folder(tmp_path, LLAVA), False)
    targets = adapter.targets(make_workload(adapter, image="32x32", dtype="float32", decode_steps=1))
    model: Any = RealModels(weights="random", device="cpu").model_of(targets[0])
    forward = model.forward

    def encodes_again(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] == 1:
            model.get_submodule("model.vision_tower")(torch.zeros(1, 3, 32, 32))
        return forward(*args, **kwargs)

    model.__dict__["forward"] = encodes_again
    with pytest.raises(PerfOptError, match="stage 'vision' ran during decode"):
        run_phases(model, targets, Unwatched(), device="cpu")


def test_a_cache_that_does_not_grow_is_refused(tmp_path: Path) -> None:
    adapter = HuggingFaceAdapter(write_folder(tmp_path, LLAMA), False)
    targets = adapter.targets(make_workload(adapter, prompt_tokens=9, dtype="float32", decode_steps=2))
    model: Any = RealModels(weights="random", device="cpu").model_of(targets[0])
    forward = model.forward

    def forgets(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if kwargs["input_ids"].shape[1] == 1:
            output.past_key_values.crop(-1)
        return output

    model.__dict__["forward"] = forgets
    with pytest.raises(PerfOptError, match="The cache holds 9 tokens after a prompt of 9 and 2 decode steps"):
        run_phases(model, targets, Unwatched(), device="cpu")
