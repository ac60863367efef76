"""Three tracers of one run say the same, and every difference in how they say it has a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from llm_perf_opt.comparisons import Comparison, compare
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.target import Target
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.targets import make_targets

MakeTargets = Callable[[], tuple[Target, ...]]

PAIRS = [("weightless", "hooks"), ("hooks", "torchlens"), ("weightless", "torchlens")]
PROFILED = [("weightless", "profiler"), ("hooks", "profiler")]
SAMPLE = (
    "Gemma3ForCausalLM",
    "DebertaV2ForSequenceClassification",
    "T5ForConditionalGeneration",
    "MixtralForCausalLM",
    "SwitchTransformersForConditionalGeneration",
    "LongcatFlashForCausalLM",
    "Mamba2ForCausalLM",
    "ViTForImageClassification",
    "LlavaForConditionalGeneration",
    "Wav2Vec2ForCTC",
)
NAMED = {  # what may differ between two tracers of one run, and nothing else
    "tracer cannot see ops",
    "routing",
    "order of tensors",
    "tensor listed once",
    "written through a view",
    "weights listed as inputs",
    "cache objects",
}
needs_torchlens = pytest.mark.skipif(find_spec("torchlens") is None, reason="the extra torchlens is not installed")


def traced(tracer: str, make: MakeTargets) -> list[CallGraph]:
    """Each tracer gets targets of its own: a model that ran without weights has none to run with."""
    made: Any = TRACERS.get(tracer)
    return [made(device="cpu").trace(target) for target in make()]


def held_against(left: str, right: str, make: MakeTargets) -> list[Comparison]:
    graphs = zip(traced(left, make), traced(right, make), strict=True)
    return [compare(*pair) for pair in graphs]


def tiny_ocr() -> tuple[Target, ...]:
    workload = DeepSeekOcrWorkload(mode="gundam", crops=(1, 2), prompt_tokens=5, decode_steps=2, dtype="float32")
    return make_targets(DeepSeekOcrConfig.tiny(), workload)


@needs_torchlens
@pytest.mark.parametrize(("left", "right"), PAIRS + PROFILED)
def test_on_the_tiny_blueprint(left: str, right: str) -> None:
    for found in held_against(left, right, tiny_ocr):
        assert found.unexplained == ()
        calls = {f.difference.path: f.cause for f in found.findings if f.difference.aspect in {"calls", "caller"}}
        assert set(calls.values()) <= {"routing"}
        assert {finding.cause for finding in found.findings} <= NAMED


@needs_torchlens
@pytest.mark.breadth
@pytest.mark.parametrize("name", SAMPLE)
def test_on_tiny_models_of_many_kinds(name: str) -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for transformers 5")
    from tests.breadth.tiny_models import TINY_MODELS

    tiny = next(model for model in TINY_MODELS if model.model == name)

    def make() -> tuple[Target, ...]:
        inputs = tiny.make_inputs()

        def invoke(model: Any) -> object:
            with torch.no_grad():
                return model(**inputs)

        return (Target(model=name, phase="forward", workload={}, build=cache(tiny.build), invoke=invoke),)

    graphs = {tracer: traced(tracer, make)[0] for tracer in ("weightless", "hooks", "torchlens")}
    for left, right in PAIRS:
        found = compare(graphs[left], graphs[right])
        assert found.unexplained == ()
        assert {finding.cause for finding in found.findings} <= NAMED


def test_the_sample_has_the_kinds_that_matter() -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for transformers 5")
    from tests.breadth.tiny_models import TINY_MODELS

    by_name = {model.model: model for model in TINY_MODELS}
    assert set(SAMPLE) <= by_name.keys()
    assert len({by_name[name].family for name in SAMPLE}) >= 6
    assert sum(by_name[name].routed for name in SAMPLE) >= 3
