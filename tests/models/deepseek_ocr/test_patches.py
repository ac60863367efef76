from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.patches import FORWARD_POINT, patched
from llm_perf_opt.models.deepseek_ocr.targets import make_targets
from tests.models.deepseek_ocr import vendor_stand_ins as vendor

VENDOR = sys.modules[vendor.DeepseekOCRModel.__module__]
IDS = torch.arange(7)[None]
PAGE, CROPS, NO_CROPS = torch.ones(1, 2), torch.ones(4, 2), torch.zeros(1, 2)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Every attribute of every class of the model, and of the Python modules these live in."""
    owners: dict[str, Any] = {}
    for module in model.modules():
        for owner in type(module).__mro__:
            owners[f"{owner.__module__}.{owner.__qualname__}"] = owner
            owners[owner.__module__] = sys.modules.get(owner.__module__)
    return {
        f"{place}:{name}": value
        for place, owner in owners.items()
        if owner is not None
        for name, value in vars(owner).items()
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Attributes that are another object, or are there on one side only."""
    names = before.keys() | after.keys()
    return {name for name in names if name not in before or name not in after or before[name] is not after[name]}


@pytest.fixture
def model() -> Iterator[vendor.DeepseekOCRForCausalLM]:
    """A stand-in whose classes must be, afterwards, the very objects that they were."""
    made = vendor.DeepseekOCRForCausalLM()
    before = snapshot(made)
    yield made
    assert changed(before, snapshot(made)) == set()


def test_the_snapshot_would_see_a_patch(model: nn.Module) -> None:
    before = snapshot(model)
    with patched(model):
        names = {name.rpartition(".")[2] for name in changed(before, snapshot(model))}
    assert names == {
        "DeepseekOCRModel:forward",
        "ImageEncoderViT:forward",
        "DeepseekV2DecoderLayer:forward",
        "vendor_stand_ins:quick_gelu",
    }


def test_the_loops_are_observed(model: nn.Module) -> None:
    facts: dict[str, Any] = {}
    with patched(model, facts.__setitem__):
        model(IDS, images=[(CROPS, PAGE), (NO_CROPS, PAGE.clone())])
        assert facts == {"images": 2, "crops_per_image": [4, 0], "decoder_depth": 3, "decode_steps": 0}
        model(IDS[:, :1], past_key_values=[1], images=[(CROPS, PAGE)])
        model(IDS[:, :1], past_key_values=[1], images=[(CROPS, PAGE)])
    assert facts == {"images": 2, "crops_per_image": [4, 0], "decoder_depth": 3, "decode_steps": 2}


def test_a_prompt_of_one_token_is_no_decode_step(model: nn.Module) -> None:
    with patched(model) as facts:
        model(IDS[:, :1])
    assert (facts.decode_steps, facts.decoder_depth, facts.crops_per_image) == (0, 3, [])


def test_another_instance_is_not_counted(model: nn.Module) -> None:
    other = vendor.DeepseekOCRForCausalLM(depth=5)
    with patched(model) as facts:
        other(IDS, images=[(CROPS, PAGE)])
    assert (facts.decoder_depth, facts.crops_per_image) == (0, [])


def test_the_scripted_function_becomes_a_plain_one_of_the_same_values(model: nn.Module) -> None:
    x = torch.linspace(-4, 4, 33)
    expected = vendor.quick_gelu(x)
    assert isinstance(VENDOR.quick_gelu, torch.jit.ScriptFunction)
    with patched(model):
        assert not isinstance(VENDOR.quick_gelu, torch.jit.ScriptFunction)
        torch.testing.assert_close(VENDOR.quick_gelu(x), expected)


def test_signature_and_result_of_forward_are_as_before(model: nn.Module) -> None:
    import inspect

    expected, signature = model(IDS, images=[(CROPS, PAGE)]), inspect.signature(vendor.DeepseekOCRModel.forward)
    with patched(model):
        torch.testing.assert_close(model(IDS, images=[(CROPS, PAGE)]), expected)
        assert inspect.signature(vendor.DeepseekOCRModel.forward) == signature


def test_nothing_stays_when_the_body_raises(model: nn.Module) -> None:
    facts: dict[str, Any] = {}
    before = snapshot(model)
    with (
        pytest.raises(AttributeError, match="'str' object has no attribute 'float'"),
        patched(model, facts.__setitem__),
    ):
        model("not a tensor")
    assert changed(before, snapshot(model)) == set()


def test_a_forward_that_raises_half_way_still_tells_what_it_saw(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    facts: dict[str, Any] = {}
    monkeypatch.setattr(vendor.DeepseekV2DecoderLayer, "forward", fail)
    with pytest.raises(RuntimeError, match="no"), patched(model, facts.__setitem__):
        model(IDS, images=[(CROPS, PAGE)])
    assert facts["crops_per_image"] == [4]
    assert facts["decoder_depth"] == 1
    monkeypatch.undo()


@pytest.mark.parametrize("first_left", [0, 1])
def test_two_may_be_left_in_either_order(model: nn.Module, first_left: int) -> None:
    before = snapshot(model)
    seen: list[dict[str, Any]] = [{}, {}]
    stacks = [ExitStack(), ExitStack()]
    for stack, facts in zip(stacks, seen, strict=True):
        stack.enter_context(patched(model, facts.__setitem__))
    model(IDS, images=[(CROPS, PAGE)])
    stacks[first_left].close()
    assert isinstance(vendor.quick_gelu, torch.jit.ScriptFunction) is False
    model(IDS, images=[(CROPS, PAGE)])
    stacks[1 - first_left].close()
    assert changed(before, snapshot(model)) == set()
    assert seen[first_left]["images"] == 1
    assert seen[1 - first_left]["images"] == 2


def test_nesting_changes_no_result_and_counts_nothing_twice(model: nn.Module) -> None:
    with patched(model) as outer, patched(model) as inner, patched(model):
        model(IDS, images=[(CROPS, PAGE)])
    assert outer.crops_per_image == inner.crops_per_image == [4]


def test_a_renamed_class_costs_its_facts_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class DecoderBlock(nn.Module):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return hidden_states

    model = vendor.DeepseekOCRForCausalLM()
    model.model.layers = nn.ModuleList([DecoderBlock()])
    monkeypatch.delattr(VENDOR, "quick_gelu")
    facts: dict[str, Any] = {}
    with caplog.at_level(logging.WARNING), patched(model, facts.__setitem__):
        monkeypatch.setattr(VENDOR, "quick_gelu", torch.relu, raising=False)  # so that the model runs
        model(IDS, images=[(CROPS, PAGE)])
    assert facts.keys() == {"missing_patch_points", "images", "crops_per_image", "decode_steps"}
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == len(facts["missing_patch_points"]) == 2
    assert "DeepseekV2DecoderLayer.forward is missing: the decoder's depth" in warnings[0]
    assert "quick_gelu beside NoTPFeedForward is missing" in warnings[1]
    monkeypatch.undo()


def test_a_renamed_argument_costs_every_loop_fact(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, input_ids: Any, pixel_values: Any = None) -> Any:
        return input_ids

    facts: dict[str, Any] = {}
    monkeypatch.setattr(vendor.DeepseekOCRModel, "forward", forward)
    with patched(model, facts.__setitem__):
        model.model(IDS)  # type: ignore[operator]
    assert facts == {"missing_patch_points": {FORWARD_POINT.name: FORWARD_POINT.loss}}
    monkeypatch.undo()


def test_a_model_of_another_kind_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with patched(nn.Linear(2, 2)) as facts:
        assert facts.seen == frozenset()
    assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("workload", "images", "crops"),
    [
        (DeepSeekOcrWorkload(mode="base", decode_steps=3), 1, [0]),
        (DeepSeekOcrWorkload(mode="gundam", crops=(2, 1), decode_steps=3, batch=2), 2, [2, 2]),
    ],
)
def test_a_trace_holds_what_was_observed(workload: Workload, images: int, crops: list[int]) -> None:
    config = DeepSeekOcrConfig.tiny()
    targets = make_targets(config, workload)
    facts = [name for name in targets[0].runtime if name != "expected_calls"]
    wrong = [replace(target, runtime=dict.fromkeys(facts, -1)) for target in targets]
    tracer = WeightlessTracer()
    prefill, decode = (tracer.trace(target) for target in wrong)
    observed = sorted(facts)
    depth = config.decoder.num_hidden_layers
    assert prefill.runtime == {
        "images": images,
        "crops_per_image": crops,
        "images_spatial_crop": [[2, 1] if count else [1, 1] for count in crops],
        "decoder_depth": depth,
        "decode_steps": 0,
        "observed": observed,
    }
    assert decode.runtime == {
        "images": 0,
        "crops_per_image": [],
        "images_spatial_crop": [],
        "decoder_depth": depth,
        "decode_steps": 3,
        "observed": observed,
    }
    assert any("runtime.images: -1 was expected" in note for note in prefill.notes)
    assert [tracer.trace(target).notes for target in targets] == [(), ()]  # the adapter's own claims hold


RELEASED = os.environ.get("LLM_PERF_OPT_DSOCR_DIR")


@pytest.mark.slow
@pytest.mark.skipif(RELEASED is None, reason="LLM_PERF_OPT_DSOCR_DIR does not name a folder with the released code")
def test_the_released_code_runs_patched_and_is_left_as_it_was() -> None:
    assert RELEASED is not None
    model, config = released_tiny(Path(RELEASED))
    before = snapshot(model)
    facts: dict[str, Any] = {}
    page, crops = torch.rand(1, 3, 1024, 1024), torch.rand(2, 3, 640, 640)
    image_tokens = 16 * 17 + 1 + (10 * 1 + 1) * 20
    ids = torch.tensor([[0, *[config.image_id] * image_tokens, 5, 6]])
    inputs = {"images": [(crops, page)], "images_seq_mask": ids == config.image_id}
    grid = torch.tensor([[1, 2]])
    with torch.no_grad(), patched(model, facts.__setitem__):
        output = model(input_ids=ids, images_spatial_crop=grid, use_cache=True, **inputs)
        for _ in range(2):
            past = output.past_key_values
            output = model(
                input_ids=ids[:, :1], past_key_values=past, images_spatial_crop=grid, use_cache=True, **inputs
            )
    loops = {"images": 1, "crops_per_image": [2], "images_spatial_crop": [[1, 2]]}
    assert facts == {**loops, "decoder_depth": 2, "decode_steps": 2}
    assert changed(before, snapshot(model)) == set()


def released_tiny(folder: Path) -> tuple[nn.Module, Any]:
    """The released classes with a small decoder; the vision encoders have their sizes in the code."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    config.num_hidden_layers, config.n_routed_experts, config.vocab_size = 2, 8, 129280
    config._attn_implementation, config.image_id = "eager", 128815
    model_class = get_class_from_dynamic_module("modeling_deepseekocr.DeepseekOCRForCausalLM", folder)
    return model_class(config).eval(), config
