"""What a report says about its workload equals the shapes in the trace: many architectures, odd requests.

The report is read as a person reads it, from its text; the trace is read from what went into the root module.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the tiny models are of transformers 5")

import transformers

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.costs.stage_costs import stage_report
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

Shape = tuple[int, ...]

NAMES = (
    "LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM", "GPT2LMHeadModel",
    "FalconForCausalLM", "BloomForCausalLM", "BertForMaskedLM", "ModernBertForMaskedLM", "EsmForMaskedLM",
    "T5ForConditionalGeneration", "BartForConditionalGeneration", "ProphetNetForConditionalGeneration",
    "MixtralForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM",
    "JetMoeForCausalLM", "SwitchTransformersForConditionalGeneration", "MambaForCausalLM", "Mamba2ForCausalLM",
    "JambaForCausalLM", "RwkvForCausalLM", "Qwen3NextForCausalLM", "ViTForImageClassification", "Dinov2Model",
    "ResNetForImageClassification", "VideoMAEForVideoClassification", "DetrForObjectDetection",
    "OwlViTForObjectDetection", "CLIPModel", "SiglipModel", "BlipForConditionalGeneration",
    "LlavaForConditionalGeneration", "PaliGemmaForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration",
    "Wav2Vec2ForCTC", "WhisperForConditionalGeneration", "WavLMModel", "SpeechT5ForTextToSpeech",
    "TimeSeriesTransformerForPrediction",
)  # fmt: skip
MODELS = [model for model in TINY_MODELS if model.model in NAMES]
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    {"prompt_tokens": 1},
    {"prompt_tokens": 7, "batch": 3, "decode_steps": 3},
    {"prompt_tokens": 130, "decode_steps": 2},
    {"image": "16x16", "prompt_tokens": 5},
    {"image": "333x222", "batch": 2, "decode_steps": 0},
)


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


def traced(folder: Path, request: dict[str, Any]) -> tuple[CallGraph, ...]:
    tracer = WeightlessTracer()
    targets = HuggingFaceAdapter(folder, False).targets(HuggingFaceWorkload(dtype="float32", **request))
    return tuple(tracer.trace(target) for target in targets)


class Said:
    """The sentence on the workload in a printed report, taken apart again."""

    def __init__(self, graphs: tuple[CallGraph, ...]) -> None:
        printed = REPORTERS.get("text")().render(stage_report(graphs))
        flat = " ".join(printed.split())
        (self.prefill, self.decode) = re.search(
            r"Workload: (.*?\.)(?: Decode: (inputs \(.*?\))\.)? note:", flat + " note:"
        ).groups()  # type: ignore[union-attr]

    def number(self, name: str) -> int | None:
        found = re.search(rf"(?<!\w){name} ([\d,]+)(?!x)", self.prefill)
        return None if found is None else int(found[1].replace(",", ""))

    def word(self, name: str) -> str | None:
        found = re.search(rf"(?:^|, ){name} ([^,.]+)", self.prefill)
        return None if found is None else found[1]

    def shapes(self, phase: str) -> Counter[Shape]:
        """Of the tensors among the inputs; a plain number is none."""
        sentence = self.decode if phase == "decode" else self.prefill
        inside = re.search(r"inputs \((.*?)\)(?:,|\.|$)", sentence or "")
        assert inside is not None, sentence
        told = re.findall(r"\w+ (\d+(?:x\d+)+)", inside[1])
        return Counter(tuple(map(int, text.split("x"))) for text in told)


def root_inputs(graph: CallGraph) -> list[Counter[Shape]]:
    """Shapes that went into each call of the root, in the order of the calls' first appearance."""
    return [Counter(meta.shape for meta in seen.tensors) for seen in graph.input_metadata[""]]


def is_in_trace(shape: Shape, graph: CallGraph) -> bool:
    """Whether some module was called with a tensor that begins so."""
    every = (meta for rows in graph.input_metadata.values() for seen in rows for meta in seen.tensors)
    return any(meta.shape[: len(shape)] == shape and len(meta.shape) > len(shape) for meta in every)


def check_prefill(graph: CallGraph, said: Said) -> None:
    (given,) = root_inputs(graph)
    assert said.shapes("prefill") == given
    batch, context, words = said.number("batch"), said.number("context tokens"), said.number("prompt tokens")
    if context is not None and words is not None:
        assert words + (said.number("image tokens") or 0) + (said.number("audio tokens") or 0) == context
        assert is_in_trace((batch or 0, context), graph), "no layer saw that many positions"
    for name in ("encoder tokens", "decoder tokens"):
        if (tokens := said.number(name)) is not None:
            assert is_in_trace((batch or 0, tokens), graph), name
    for name in ("audio frames", "audio samples"):
        if (length := said.number(name)) is not None:
            assert any(length in shape for shape in given), name


def check_logits(graph: CallGraph, said: Said, vocabulary: int) -> None:
    """The positions that get logits are those that the sentence names."""
    rows = [meta.shape for seen in graph.output_metadata[""] for meta in seen.tensors]
    positions = {shape[1] for shape in rows if len(shape) == 3 and shape[2] == vocabulary}
    everything = said.number("decoder tokens") or said.number("context tokens")
    if positions and said.word("logits") is not None:
        assert positions == {1 if said.word("logits") == "last position" else everything}


def check_image(graph: CallGraph, said: Said) -> None:
    """The pixels of an image of that size, or of as many patches as fit into it, were fed."""
    if (size := re.search(r"(?:^|, )image (\d+)x(\d+)", said.prefill)) is None:
        return
    width, height = map(int, size.groups())
    (given,) = root_inputs(graph)
    whole = [shape for shape in given if shape[-2:] == (height, width)]
    values = (said.number("batch") or 0) * width * height
    packed = [shape for shape in given if len(shape) in (2, 3) and math.prod(shape) % values == 0]
    assert whole or packed


def check_decode(graph: CallGraph, said: Said) -> None:
    first, *_ = root_inputs(graph)
    stated = said.shapes("decode")
    assert not stated - first, "the report names an input that was not given"
    carried = first - stated
    assert graph.root_calls == {"": said.number("decode steps")}
    held = said.number("decoder tokens") or said.number("context tokens")
    lengths = {shape[-2] for shape in carried if len(shape) == 4}
    # Recurrent states have no length, and a window holds no more than its own.
    assert held in lengths or "mamba" in graph.model or "rwkv" in graph.model or not lengths


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(model: TinyModel, folders: Path) -> Path:
    config = getattr(transformers, model.config)(**model.sizes)
    config.architectures = [model.model]
    folder = folders / model.model.lower()
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.model)
def test_the_report_says_what_ran(model: TinyModel, folders: Path) -> None:
    folder = folder_of(model, folders)
    ran = 0
    for request in REQUESTS:
        try:
            graphs = traced(folder, request)
        except UsageError:
            continue
        ran += 1
        said = Said(graphs)
        check_prefill(graphs[0], said)
        check_logits(graphs[0], said, vocabulary=64)
        check_image(graphs[0], said)
        assert said.number("batch") == request.get("batch", 1)
        assert said.number("prompt tokens") == request.get("prompt_tokens", said.number("prompt tokens"))
        assert said.number("decode steps") in (0, request.get("decode_steps", 1))
        assert len(graphs) == 1 + bool(said.number("decode steps"))
        if len(graphs) > 1:
            check_decode(graphs[1], said)
    assert ran, "every request was refused"


def test_the_sample_is_wide() -> None:
    assert {model.model for model in MODELS} == set(NAMES)
    assert len(MODELS) >= 30
    assert len({model.family for model in MODELS}) >= 9
