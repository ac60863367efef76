"""The predicted peak of live tensor bytes against the one measured in a real run: tiny models, and full-size ones."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the tiny models are written for transformers 5")

from benchmarks.peak_memory import (
    FULL_SIZE,
    TOLERANCE,
    MakeTarget,
    cases,
    forward_target,
    held_against,
    ocr_target,
    predicted,
)
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.costs.memory.memory_report import AttentionCase, attention_cases, attention_table
from llm_perf_opt.costs.memory.need import need_table, run_memory
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel
from tests.end_to_end.deepseek_ocr_runs import trace

DOCS = Path(__file__).parents[2] / "docs"
RECORD, PAGE = DOCS / "data" / "peak_memory.json", DOCS / "evidence" / "memory.md"
# Decoders, encoders, an encoder-decoder, mixtures of experts, recurrent ones, vision, vision-language, audio.
SAMPLE = (
    "LlamaForCausalLM",
    "Gemma3ForCausalLM",
    "BertForMaskedLM",
    "LongformerModel",
    "T5ForConditionalGeneration",
    "MixtralForCausalLM",
    "DeepseekV3ForCausalLM",
    "MambaForCausalLM",
    "Mamba2ForCausalLM",
    "ViTForImageClassification",
    "ResNetForImageClassification",
    "SamModel",
    "CLIPModel",
    "Qwen2VLForConditionalGeneration",
    "Wav2Vec2ForCTC",
    "WhisperForConditionalGeneration",
)
TINY = [model for model in TINY_MODELS if model.model in SAMPLE]
OCR_RUNS = [(mode, attention) for mode in ("tiny", "base", "gundam") for attention in ("eager", "sdpa", "flash")]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def transformers_has_settled() -> None:
    """The first model that transformers builds gives `torch.nn.Module` a method for good; let that be done already."""
    TINY[0].build()


def assert_predicted(make: MakeTarget) -> None:
    pair = held_against(make)
    assert pair.measured_bytes > 1000
    assert abs(pair.difference) <= TOLERANCE, pair


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(("mode", "attention"), OCR_RUNS)
def test_tiny_deepseek_ocr(mode: str, attention: str, phase: str) -> None:
    workload = DeepSeekOcrWorkload(image="200x300", dtype="float32", mode=mode, attention=attention)
    adapter = DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny())
    assert_predicted(partial(ocr_target, phase, workload, adapter))


@pytest.mark.parametrize("model", TINY, ids=lambda model: f"{model.model}-{model.experts or ''}")
def test_a_tiny_model(model: TinyModel) -> None:
    inputs = model.make_inputs()
    assert_predicted(lambda: forward_target(model.model, model.build, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "bert-large"])
def test_a_full_size_model(name: str) -> None:
    assert_predicted(FULL_SIZE[name].target)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_the_recorded_real_runs_at_full_size_are_predicted(name: str) -> None:
    """The real runs themselves take minutes and 8 GB; `benchmarks/peak_memory.py` made the record."""
    measured_bytes = json.loads(RECORD.read_text("utf-8"))["runs"][name]["measured_bytes"]
    assert predicted(cases()[name]()).bytes == pytest.approx(measured_bytes, rel=TOLERANCE)


def test_the_sample_has_every_kind() -> None:
    assert {model.model for model in TINY} == set(SAMPLE)
    assert len({model.family for model in TINY}) >= 6
    assert sum(model.routed for model in TINY) >= 1


# ---- DeepSeek-OCR at full size: the figures of the page "Does it fit?"


@cache
def full_size_run(
    attention: str, mode: str = "gundam", crops: tuple[int, int] | None = (2, 3), **changes: Any
) -> tuple[CallGraph, ...]:
    workload = DeepSeekOcrWorkload(image="1240x1754", mode=mode, crops=crops, attention=attention, **changes)
    tracer = WeightlessTracer()
    return tuple(tracer.trace(target) for target in DeepSeekOcrAdapter().targets(workload))


def full_size_cases() -> tuple[AttentionCase, ...]:
    return attention_cases(full_size_run("eager"), full_size_run("sdpa"))


@pytest.mark.slow
def test_fused_attention_never_holds_the_scores() -> None:
    """Eager attention writes [10 heads, S, S] scores and casts them to float32; a fused kernel writes none of it."""
    prefill, decode = full_size_cases()
    assert prefill.modules == decode.modules == "model.layers.[0-11].self_attn"
    assert prefill.eager is not None and prefill.fused is not None
    scores_bytes = 10 * 924 * 924 * 4
    assert prefill.eager.added_bytes - prefill.fused.added_bytes > 2 * scores_bytes
    assert prefill.fused.added_bytes < scores_bytes
    assert prefill.eager.stage_bytes == prefill.fused.stage_bytes  # the logits make the peak either way
    assert len(attention_table(full_size_cases()).rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "mode", "crops"),
    [
        *((mode, mode, None) for mode in ("tiny", "small", "base", "large")),
        ("gundam, 2 x 3 crops", "gundam", (2, 3)),
        ("gundam, 3 x 3 crops", "gundam", (3, 3)),
    ],
)
def test_the_page_shows_every_mode(told: str, mode: str, crops: tuple[int, int] | None) -> None:
    graphs = full_size_run("eager", mode, crops) if crops != (2, 3) else full_size_run("eager")
    memory = run_memory(graphs)
    assert memory.cache is not None
    stages = {stage.stage: format_bytes(stage.peak.bytes) for phase in memory.phases for stage in phase.stages}
    needed = [format_bytes(phase.total_bytes or 0) for phase in memory.phases]
    row = [format_bytes(memory.cache.bytes), *(stages[name] for name in ("sam", "clip", "prefill", "decode")), *needed]
    context = graphs[0].workload["context_tokens"]
    assert f"| {told} | {context:,} | {' | '.join(row)} |" in PAGE.read_text("utf-8")


@pytest.mark.slow
def test_the_page_shows_where_the_scores_outgrow_the_logits() -> None:
    def peak(prompt_tokens: int, attention: str) -> str:
        run = full_size_run(attention, "base", None, prompt_tokens=prompt_tokens, decode_steps=0)
        (prefill,) = run_memory(run).phases
        assert prefill.peak is not None
        return format_bytes(prefill.peak.bytes)

    page = " ".join(PAGE.read_text("utf-8").split())
    eager = peak(7000, "eager")
    assert eager == peak(7000, "sdpa")
    assert f"7,000 prompt tokens peaks at {eager} either way" in page
    assert f"9,000 at {peak(9000, 'eager')} eager and {peak(9000, 'sdpa')} fused" in page


@pytest.mark.slow
def test_the_page_shows_whether_it_fits() -> None:
    """The table of the prediction for one device, from the commands at the top of the page."""
    page = (DOCS / "start" / "does-it-fit.md").read_text("utf-8")
    table = need_table(run_memory(full_size_run("eager")), find_device("rtx-4090"))
    shown = REPORTERS.get("text")().render(Report(title="", tables=(table,))).strip()
    assert shown in page


@pytest.mark.slow
def test_the_page_shows_both_kinds_of_attention() -> None:
    page = PAGE.read_text("utf-8")
    for row_cells in attention_table(full_size_cases()).rows:
        stage, attention, *figures, _ = row_cells
        assert f"| {stage} | {attention} | {' | '.join(format_bytes(int(cell or 0)) for cell in figures)} |" in page


@pytest.mark.slow
def test_the_page_shows_the_recorded_runs() -> None:
    page = PAGE.read_text("utf-8")
    for name, run in json.loads(RECORD.read_text("utf-8"))["runs"].items():
        assert f"| {name} | {run['measured_bytes']:,} | {run['predicted_bytes']:,} |" in page


@pytest.mark.slow
def test_weights_and_cache_of_deepseek_ocr_are_the_known_ones() -> None:
    graphs = [trace(DeepSeekOcrWorkload(image="1240x1754", mode="base"), phase) for phase in ("prefill", "decode")]
    memory = run_memory(graphs)
    assert memory.cache is not None
    assert memory.cache.bytes_per_token == 61_440
    assert memory.cache.bytes == 61_440 * graphs[0].workload["context_tokens"]
    assert {phase.weight_bytes for phase in memory.phases} == {2 * 3_336_106_240}
