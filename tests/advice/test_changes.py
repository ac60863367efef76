"""Changes: each equals a new trace of changed code, and is told only where somebody could make it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.advice.changes import CHANGES
from llm_perf_opt.advice.pricing import Pricer, code_kernels, seconds_of
from llm_perf_opt.advice.setup import Setup, has_looped_experts, has_written_scores
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware.links import find_hardware
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.fusions import Fusion
from tests.models.huggingface.folders import LLAMA, MIXTRAL, write_folder

pytest.importorskip("transformers", reason="the traced models are built by transformers, an optional extra")

Figures = tuple[int, int, int]


def forward(folder: Path, config: dict[str, Any], *, keep: int = 1, cache: bool = False, **built: Any) -> CallGraph:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = getattr(torch, built.pop("dtype", "bfloat16"))
    with torch.device("meta"):
        made = AutoConfig.from_pretrained(write_folder(folder, config))
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, **built).eval()
    ids = torch.zeros(1, 40, dtype=torch.long)
    return lpo.trace(model, (ids,), {"logits_to_keep": keep, "use_cache": cache}).graphs[0]


def setup_of(graph: CallGraph, device: str = "h100-sxm", **changed: Any) -> Setup:
    return Setup(graphs=(graph,), hardware=find_hardware(device), **changed)


def figures(graph: CallGraph, rules: frozenset[Fusion] = frozenset()) -> Figures:
    """FLOPs that no kernel can leave out, bytes that no kernel keeps, launches."""
    kernels: Counter[Kernel] = Counter()
    for counts in code_kernels(graph, rules).values():
        kernels += counts
    flops = sum((kernel.flops - kernel.skippable_flops) * count for kernel, count in kernels.items())
    moved = sum((kernel.bytes_moved - kernel.avoidable_bytes) * count for kernel, count in kernels.items())
    return flops, moved, kernels.total()


def predicted(change: str, graph: CallGraph) -> Figures:
    after = CHANGES.get(change).apply(setup_of(graph))
    assert after is not None
    return figures(after.graphs[0], after.rules)


def test_grouped_experts_equal_a_new_trace(tmp_path: Path) -> None:
    loop, grouped = (forward(tmp_path, MIXTRAL, experts_implementation=how) for how in ("eager", "grouped_mm"))
    assert has_looped_experts(loop) and not has_looped_experts(grouped)
    assert predicted("grouped-experts", loop) == figures(grouped)
    assert figures(loop)[2] > figures(grouped)[2]


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["dense", "experts"])
def test_last_logits_equal_a_new_trace(tmp_path: Path, config: dict[str, Any]) -> None:
    every, last = (forward(tmp_path, config, keep=keep, cache=True) for keep in (0, 1))
    assert predicted("last-logits", every) == figures(last)
    assert figures(every)[0] - figures(last)[0] == 2 * 39 * 64 * 200, "39 positions of a head of 64 x 200"


def test_fused_attention_has_the_flops_of_a_new_trace(tmp_path: Path) -> None:
    written, fused = (forward(tmp_path, LLAMA, attn_implementation=how) for how in ("eager", "sdpa"))
    assert has_written_scores(written) and not has_written_scores(fused)
    flops, moved, launches = predicted("fused-attention", written)
    assert flops == figures(fused)[0]
    assert figures(written)[1] > moved >= figures(fused)[1], "the mask is still built"
    assert figures(written)[2] > launches >= figures(fused)[2]


def test_half_precision_has_the_flops_of_a_new_trace(tmp_path: Path) -> None:
    wide, half = (forward(tmp_path, LLAMA, dtype=name) for name in ("float32", "bfloat16"))
    wide = replace(wide, workload={**wide.workload, "dtype": "float32"})  # what a named model says of itself
    flops, moved, launches = predicted("half-precision", wide)
    assert (flops, launches) == (figures(half)[0], figures(wide)[2])
    assert moved < 0.6 * figures(wide)[1]


@pytest.mark.parametrize(
    ("name", "traced", "device"),
    [
        ("weights-fp8", {"weights": "fp8"}, "h100-sxm"),
        ("weights-int4", {"weights": "int4-g128"}, "h100-sxm"),
        ("cache-fp8", {"cache": "fp8"}, "h100-sxm"),
        ("larger-batch", {"batch": 8}, "h100-sxm"),
        ("tensor-parallel", {"tp": 2}, "2x h100-sxm"),
    ],
)
def test_another_deployment_takes_the_time_of_a_new_trace(
    tmp_path: Path, name: str, traced: dict[str, Any], device: str
) -> None:
    folder = write_folder(tmp_path, LLAMA)
    graphs = lpo.trace(folder, prompt_tokens=40).graphs
    engine = Setup(graphs=graphs, hardware=find_hardware("h100-sxm"), execution=Execution.FUSED)
    changed = CHANGES.get(name).apply(engine)
    if name == "tensor-parallel":
        assert changed is None, "a model of a few megabytes is not worth two devices"
        changed = replace(engine, hardware=find_hardware(device), tp=2)
    assert changed is not None
    (step,) = (stage for stage in Pricer().stages(changed) if stage.phase == "decode")
    anew = lpo.trace(folder, prompt_tokens=40, **traced).predict(device, execution="fused")
    (expected,) = (stage.expected_s for stage in anew.stages if stage.phase == "decode")
    assert seconds_of(step.wall) == expected


PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "advice-examples.md"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
PART = r"([\d.]+)(?: / (\d+))?"
ENTRY = re.compile(rf"499 x \({PART} - {PART}\) ms(?: \+ \(([\d.]+) - ([\d.]+)\) ms)? = ([\d.]+) (us|ms|s) ")


def test_the_arithmetic_of_the_examples_is_right() -> None:
    entries = ENTRY.findall(PAGE.read_text("utf-8"))
    assert len(entries) >= 36, "six models, three devices, two entries or more"
    for old, shared, new, by, before, after, saved, unit in entries:
        steps = 499 * (float(old) / int(shared or 1) - float(new) / int(by or 1))
        first = float(before or 0) - float(after or 0)
        assert 1e-3 * (steps + first) == pytest.approx(float(saved) * UNITS[unit], rel=6e-3)


CODE = [name for name in CHANGES.names() if CHANGES.get(name).is_of_code]


@pytest.mark.parametrize("name", CODE)
def test_an_engine_needs_no_change_of_the_code(tmp_path: Path, name: str) -> None:
    graph = forward(tmp_path, MIXTRAL, experts_implementation="eager", attn_implementation="eager")
    assert CHANGES.get(name).apply(setup_of(graph, execution=Execution.FUSED)) is None


@pytest.mark.parametrize("name", CHANGES.names())
def test_a_change_is_made_once(name: str) -> None:
    graphs = lpo.trace("deepseek-ocr-tiny").graphs
    rewrite = CHANGES.get(name)
    setup = Setup(graphs=graphs, hardware=find_hardware("h100-sxm"))
    first = rewrite.apply(setup)
    assert first is None or rewrite.apply(first) is None
    assert all((rewrite.title, rewrite.how, rewrite.may_cost, rewrite.rests_on))


@pytest.mark.parametrize(
    ("name", "device", "why"),
    [
        ("weights-fp8", "a100-sxm-80g", "it has no engines for 8 bits"),
        ("weights-int4", "apple-m3-max-40", "no kernels of four bits are known there"),
        ("captured-graphs", "apple-m3-max-40", "it has no CUDA graphs"),
        ("captured-graphs", "h100-sxm", "experts are chosen on the host"),
        ("compiled", "h100-sxm", "experts are chosen on the host"),
        ("cache-fp8", "h100-sxm", "eager PyTorch reads no such cache"),
        ("weights-int4", "h100-sxm", "eager PyTorch has no kernels of four bits that are worth it"),
        ("tensor-parallel", "h100-sxm", "eager PyTorch shares no matrices by itself"),
        ("larger-batch", "h100-sxm", "eager PyTorch batches nothing by itself"),
        ("half-precision", "h100-sxm", "it is in bfloat16"),
        ("absorbed-latent", "h100-sxm", "it has no latent cache"),
    ],
)
def test_what_nobody_could_make_is_not_told(name: str, device: str, why: str) -> None:
    graphs = lpo.trace("deepseek-ocr-tiny").graphs
    assert CHANGES.get(name).apply(Setup(graphs=graphs, hardware=find_hardware(device))) is None, why


def test_graphs_are_captured_once_experts_are_grouped() -> None:
    setup = Setup(graphs=lpo.trace("deepseek-ocr-tiny").graphs, hardware=find_hardware("h100-sxm"))
    grouped = CHANGES.get("grouped-experts").apply(setup)
    assert grouped is not None
    captured = CHANGES.get("captured-graphs").apply(grouped)
    assert captured is not None and captured.captured == {"decode"}


def test_a_trace_without_matrices_has_no_narrower_weights() -> None:
    """Convolutions keep their type, so there is nothing to store in another format."""
    traced = lpo.trace(torch.nn.Conv2d(3, 8, 3), (torch.zeros(1, 3, 32, 32),))
    names = {change.name for change in traced.advise("h100-sxm", execution="fused").changes}
    assert not names & {"weights-fp8", "weights-int4"}
