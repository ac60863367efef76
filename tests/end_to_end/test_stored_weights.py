"""Quantised checkpoints of real sizes: what is stored, against published figures and against closed forms."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from llm_perf_opt.comparisons import compare
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.origin import Origin, find_adapter
from llm_perf_opt.tracing.traced_run import trace_origin
from tests.models.huggingface.folders import LLAMA, MIXTRAL, write_folder

CONFIGS = Path(__file__).parents[1] / "facts" / "deployment" / "configs"
GIB = 2**30

# Llama-3.1-8B: 32 layers of seven matrices, two tables of the vocabulary, 65 norms
LLAMA_MATRICES = 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
LLAMA_OUTPUTS = 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
LLAMA_REST = 2 * 128256 * 4096 + 65 * 4096


def trace(folder: Path, **workload: int) -> tuple[CallGraph, ...]:
    asked = HuggingFaceWorkload(prompt_tokens=8, **workload)
    return trace_origin(Origin(name=str(folder), source=find_adapter(str(folder)), workload=asked)).graphs


@cache
def weight_bytes(config: str) -> int:
    (prefill,) = trace(CONFIGS / config, decode_steps=0)
    assert prefill.problems() == []
    return run_memory([prefill]).phases[0].weight_bytes


def test_llama_is_as_large_as_the_closed_form_starts_from() -> None:
    assert LLAMA_MATRICES + LLAMA_REST == 8_030_261_248


@pytest.mark.parametrize(
    ("config", "published_bytes", "within"),
    [
        ("gpt-oss-20b-mxfp4", 12.8 * GIB, 0.01),  # model card of the release
        ("gpt-oss-120b-mxfp4", 60.8 * GIB, 0.01),  # likewise
        ("llama31-8b-awq", 5.74e9, 0.01),  # files of the published checkpoint
        ("llama31-8b-gptq", 5.74e9, 0.01),  # with the zero points of a symmetric file, which are not counted here
    ],
)
def test_stored_weights_are_as_large_as_the_published_checkpoint(
    config: str, published_bytes: float, within: float
) -> None:
    assert weight_bytes(config) == pytest.approx(published_bytes, rel=within)


@pytest.mark.parametrize(
    ("config", "expected_bytes"),
    [
        ("llama31-8b", 2 * (LLAMA_MATRICES + LLAMA_REST)),
        # 4 bits, and per 128 of them 16 for the scale and 4 for the zero point
        ("llama31-8b-awq", LLAMA_MATRICES * (4 * 128 + 20) // (128 * 8) + 2 * LLAMA_REST),
        ("llama31-8b-gptq", LLAMA_MATRICES * (4 * 128 + 16) // (128 * 8) + 2 * LLAMA_REST),
        # 4 bits, a byte per 64 of them, four bytes per 64 x 256
        (
            "llama31-8b-bnb4",
            LLAMA_MATRICES // 2 + LLAMA_MATRICES // 64 + 4 * LLAMA_MATRICES // (64 * 256) + 2 * LLAMA_REST,
        ),
        # a byte each, and four for each output
        ("llama31-8b-fp8ct", LLAMA_MATRICES + 4 * LLAMA_OUTPUTS + 2 * LLAMA_REST),
        # 19,110,297,600 values in stacks at 4.25 bits, the other 1,804,459,584 parameters at 16
        ("gpt-oss-20b-mxfp4", 24 * 32 * (2880 * 5760 + 2880 * 2880) * 17 // 32 + 2 * 1_804_459_584),
    ],
)
def test_stored_weights_are_what_the_closed_form_says_to_the_last_byte(config: str, expected_bytes: int) -> None:
    assert weight_bytes(config) == expected_bytes


def test_blocks_of_fp8_are_counted_one_by_one() -> None:
    """DeepSeek-V3: 576 rows are five blocks of 128, the last half full; routers, norms and tables have 16 bits."""
    hidden, heads, layers, dense, experts = 7168, 128, 61, 3, 256

    def blocks(*shapes: tuple[int, int]) -> tuple[int, int]:
        values = sum(rows * columns for rows, columns in shapes)
        return values, sum(-(-rows // 128) * -(-columns // 128) for rows, columns in shapes)

    attention = blocks((1536, hidden), (heads * 192, 1536), (576, hidden), (heads * 256, 512), (hidden, heads * 128))
    mlp = blocks((18432, hidden), (18432, hidden), (hidden, 18432))
    shared = blocks((2048, hidden), (2048, hidden), (hidden, 2048))
    stacks = blocks((4096, hidden), (hidden, 2048))
    values, scales = (
        layers * attention[i] + dense * mlp[i] + (layers - dense) * (shared[i] + experts * stacks[i]) for i in (0, 1)
    )
    router = (layers - dense) * experts * hidden
    norms = layers * (1536 + 512 + 2 * hidden) + hidden
    tables = 2 * 129280 * hidden
    assert weight_bytes("deepseek-v3-fp8") == values + 4 * scales + 2 * (router + norms + tables)


def test_a_20b_model_in_mxfp4_fits_a_card_of_24_gigabytes() -> None:
    assert weight_bytes("gpt-oss-20b-mxfp4") < find_device("rtx-4090").memory_bytes
    assert weight_bytes("gpt-oss-20b") > find_device("rtx-4090").memory_bytes


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "weight-formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("gpt-oss-20b", "gpt-oss-20b-mxfp4"),
        ("gpt-oss-120b", "gpt-oss-120b-mxfp4"),
        ("Llama-3.1-8B AWQ", "llama31-8b-awq"),
        ("Llama-3.1-8B GPTQ", "llama31-8b-gptq"),
        ("Llama-3.1-8B bitsandbytes", "llama31-8b-bnb4"),
        ("Llama-3.1-8B fp8", "llama31-8b-fp8ct"),
        ("DeepSeek-V3", "deepseek-v3-fp8"),
    ],
)
def test_the_page_on_formats_shows_these_figures(title: str, config: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {title} |"))
    assert f"| {weight_bytes(config):,} bytes, " in row


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def test_two_folders_that_differ_in_their_quantisation_do_not_agree_in_everything(tmp_path: Path) -> None:
    folders = [tmp_path / name / "tiny" for name in ("dense", "awq")]
    for folder, more in zip(folders, ({}, {"quantization_config": AWQ}), strict=True):
        folder.mkdir(parents=True)
        write_folder(folder, {**LLAMA, **more})
    for left, right in zip(*map(trace, folders), strict=True):
        found = compare(left, right)
        assert {finding.cause for finding in found.findings} == {"stored format"}
        assert "weights bfloat16 -> int4-g32" in {finding.detail for finding in found.findings}
        # seven matrices in each of two layers
        assert sum(str(finding.difference.aspect) == "weights" for finding in found.findings) == 14


def test_a_method_that_nobody_knows_is_said_in_the_trace(tmp_path: Path) -> None:
    write_folder(tmp_path, {**LLAMA, "quantization_config": {"quant_method": "sparkling"}})
    for graph in trace(tmp_path):
        assert any("sparkling" in text for text in graph.deployment["warnings"])


@pytest.mark.parametrize("name", ["fp8", "int8", "int4-g128", "nf4", "mxfp4", "nvfp4"])
def test_what_if_on_a_model_equals_what_if_on_its_saved_trace(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, MIXTRAL)
    wanted, adapter = Deployment(weights=name, cache="fp8"), find_adapter(str(tmp_path), False)
    workload = Workload(prompt_tokens=8)
    plain = Origin(name="m", source=adapter, workload=workload)
    traced = trace_origin(replace(plain, deployment=wanted)).graphs
    saved = redeployed(trace_origin(plain).graphs, wanted)
    for one, other in zip(traced, saved, strict=True):
        assert one.problems() == []
        assert one.storages is not None and other.storages is not None
        assert one.storages.bytes == other.storages.bytes
        assert one.deployment == other.deployment
        assert compare(one, other).findings == ()
