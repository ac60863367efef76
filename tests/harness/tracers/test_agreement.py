"""Three independent looks at one run agree on every module's calls, edges and shapes; what is left has a name."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("torchlens", reason="one of the three tracers is an optional extra")
pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")

from benchmarks.breadth.observed import RoutingRecorder
from llm_perf_opt.core.callgraph import CallGraph, Observation
from llm_perf_opt.core.protocols import Tracer
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness import twins
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.profiler_tracer import ProfilerTracer
from llm_perf_opt.harness.tracers.torchlens_tracer import TorchLensTracer
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import ReplayRouting
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

# One of each kind: decoders, an encoder, encoder-decoders, mixtures of experts, vision, vision-language, audio.
SAMPLE = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "BertForMaskedLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "MixtralForCausalLM",
    "DeepseekV3ForCausalLM",
    "MambaForCausalLM",
    "ViTForImageClassification",
    "CLIPModel",
    "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "WhisperForConditionalGeneration",
)
MODELS = [model for model in TINY_MODELS if model.model in SAMPLE]
WORKLOAD = DeepSeekOcrWorkload(image="200x300", dtype="float32")
# The vision features are written into a view of the hidden states; TorchLens then takes the whole for that view.
WRITTEN_THROUGH_A_VIEW = {"model.layers.0", "model.layers.0.input_layernorm"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def transformers_has_settled() -> None:
    """The first model that transformers builds gives `torch.nn.Module` a method for good; let that be done already."""
    MODELS[0].build()


def target_of(model: TinyModel) -> Target:
    inputs = model.make_inputs()

    def invoke(built: Any) -> object:
        with torch.no_grad():
            return built(**copy.deepcopy(inputs))

    return Target(model=model.model, phase="forward", workload={}, build=cache(model.build), invoke=invoke)


def tiny_target(phase: str) -> Target:
    targets = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny()).targets(WORKLOAD)
    return next(target for target in targets if target.phase == phase)


def routing_of(target: Target) -> list[list[int]]:
    """Which expert gets how many rows in the real run: hooks leave dispatch alone, so a recorder fits inside."""
    recorder = RoutingRecorder()
    inner = target.run

    def invoke(model: Any) -> object:
        with recorder:
            return inner(model)

    HooksTracer().trace(Target(model="m", phase="p", workload={}, build=target.build, invoke=invoke))
    return recorder.counts


def in_order(observed: tuple[Observation, ...]) -> Counter[Any]:
    return Counter({tuple((meta.shape, meta.dtype) for meta in row.tensors): row.calls for row in observed})


def as_sets(observed: tuple[Observation, ...]) -> Counter[Any]:
    """TorchLens names an input once and nested ones after the others, so order and repetition are not its to tell."""
    found: Counter[Any] = Counter()
    for row in observed:
        found[frozenset((meta.shape, meta.dtype) for meta in row.tensors)] += row.calls
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any], view: Any) -> set[str]:
    assert one.keys() == other.keys()
    return {path for path in one if view(one[path]) != view(other[path])}


def assert_equal(one: CallGraph, other: CallGraph) -> None:
    assert one.call_counts == other.call_counts
    assert one.edges == other.edges
    assert differing(one.input_metadata, other.input_metadata, in_order) == set()
    assert differing(one.output_metadata, other.output_metadata, in_order) == set()


def assert_torchlens_equal(hooks: CallGraph, torchlens: CallGraph, named: set[str], blind: CallGraph) -> None:
    """Equal but for `named` modules and for cache objects: there it sees what `blind`, hooks without them, sees."""
    assert torchlens.call_counts == hooks.call_counts
    assert torchlens.edges == hooks.edges
    for seen, by_torchlens, by_blind in (
        (hooks.input_metadata, torchlens.input_metadata, blind.input_metadata),
        (hooks.output_metadata, torchlens.output_metadata, blind.output_metadata),
    ):
        unequal = differing(seen, by_torchlens, as_sets)
        unexplained = {path for path in unequal if as_sets(by_torchlens[path]) != as_sets(by_blind[path])}
        assert unexplained == (named if seen is hooks.input_metadata else set())


def blind_to_caches(target: Target, monkeypatch: pytest.MonkeyPatch) -> CallGraph:
    with monkeypatch.context() as patch:
        patch.setattr(twins, "is_cache", lambda value: False)
        return HooksTracer().trace(target)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_four_tracers_agree_on_the_tiny_blueprint(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = expert_rows(HooksTracer().trace(tiny_target(phase)))
    tracers: tuple[Tracer, ...] = (
        HooksTracer(),
        WeightlessTracer(routing=ReplayRouting(rows), device="cpu"),
        ProfilerTracer(),
        TorchLensTracer(),
    )
    hooks, weightless, profiler, torchlens = (tracer.trace(tiny_target(phase)) for tracer in tracers)
    assert [graph.problems() for graph in (hooks, weightless, profiler, torchlens)] == [[], [], [], []]
    assert hooks.runtime == weightless.runtime == profiler.runtime == torchlens.runtime
    assert_equal(hooks, weightless)
    assert_equal(hooks, profiler)
    named = WRITTEN_THROUGH_A_VIEW if phase == "prefill" else set()
    assert_torchlens_equal(hooks, torchlens, named, blind_to_caches(tiny_target(phase), monkeypatch))


def expert_rows(graph: CallGraph) -> list[list[int]]:
    experts = DeepSeekOcrConfig.tiny().decoder.n_routed_experts
    rows: dict[int, list[int]] = {}
    for path, observed in graph.input_metadata.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", path):
            rows.setdefault(int(match[1]), [0] * experts)[int(match[2])] = observed[0].tensors[0].shape[0]
    return [rows[layer] for layer in sorted(rows)]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model)
def test_three_tracers_agree_on_a_tiny_model(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = HooksTracer().trace(target_of(model))
    torchlens = TorchLensTracer().trace(target_of(model))
    rows = routing_of(target_of(model))
    weightless = WeightlessTracer(routing=ReplayRouting(rows) if rows else "balanced", device="cpu").trace(
        target_of(model)
    )
    assert [graph.problems() for graph in (hooks, weightless, torchlens)] == [[], [], []]
    assert len(hooks.call_counts) > 5
    assert_equal(hooks, weightless)
    assert_torchlens_equal(hooks, torchlens, set(), blind_to_caches(target_of(model), monkeypatch))


def test_the_sample_has_every_kind() -> None:
    assert len(MODELS) >= 10
    assert len({model.family for model in MODELS}) >= 5
    assert sum(model.routed for model in MODELS) >= 2
