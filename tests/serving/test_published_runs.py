"""The published runs that the page to explore draws: those of the facts, each once, and nothing for other models."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.published_runs import table
from llm_perf_opt.core.tensor_formats import value_bits
from llm_perf_opt.serving.published_runs import FILE, published_runs

FACTS = Path(__file__).parents[1] / "facts/serving/silicon_sample.csv"


def test_the_file_is_what_its_command_makes() -> None:
    assert FILE.read_text("utf-8") == table()


def test_a_run_is_the_row_of_the_facts() -> None:
    """MiniMax-M2.5 on four B300: 128 requests at once, 1,024 tokens in and out."""
    with FACTS.open(encoding="utf-8", newline="") as lines:
        rows = {row["id"]: row for row in csv.DictReader(lines)}
    row = rows["minimaxm2_5_b300_vllm_fp8_agg_1024x1024_c128_cfg733"]
    runs = [
        run
        for run in published_runs("MiniMaxAI/MiniMax-M2.5", ["b300-sxm"])
        if run.tpot_us == round(float(row["tpot_ms"]) * 1e3) and run.users == int(row["concurrency"])
    ]
    (run,) = runs
    assert (run.engine, run.weight_bits, run.gpus) == ("vllm", 8, int(row["tp_size"]))
    assert run.tokens_per_s_per_user == pytest.approx(1e3 / float(row["tpot_ms"]), rel=1e-5)
    request_s = (float(row["ttft_ms"]) + (run.output_tokens - 1) * float(row["tpot_ms"])) / 1e3
    expected = int(row["concurrency"]) * run.output_tokens / request_s / int(row["tp_size"])
    assert run.output_tokens_per_s_per_gpu == pytest.approx(expected, rel=1e-5)


def test_only_the_model_and_the_gpus_that_are_asked_for() -> None:
    runs = published_runs("Qwen/Qwen3-32B", ["h100-sxm"])
    assert len(runs) > 50
    assert {(run.model, run.gpu) for run in runs} == {("Qwen/Qwen3-32B", "h100-sxm")}
    assert published_runs("Qwen/Qwen3-32B", ["l4"]) == published_runs("no/such-model", ["h100-sxm"]) == []
    assert published_runs("deepseek-ai/DeepSeek-V3", ["h200-sxm"]) == published_runs(
        "deepseek-ai/DeepSeek-R1", ["h200-sxm"]
    )


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 16), ("fp8-block128", 8), ("mxfp4", 4), ("int4-g128", 4)])
def test_bits_of_a_stored_number(dtype: str, bits: int) -> None:
    assert value_bits(dtype) == bits
