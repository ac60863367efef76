"""The published runs that a page to explore draws next to its own points.

    python -m benchmarks.published_runs       write `src/llm_perf_opt/serving/published_runs.csv` again

Its rows are the runs of `tests/facts/serving/silicon_sample.csv` in which each worker both reads prompts and generates,
after all rules by which the accuracy pages read that file.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, fields

from benchmarks.records import MeasuredRun, read_silicon
from llm_perf_opt.core.output_files import write_result
from llm_perf_opt.serving.published_runs import FILE, PublishedRun

NAMES = {
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "minimax-m2.5": "MiniMaxAI/MiniMax-M2.5",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B",
    "kimi-k2.5": "moonshotai/Kimi-K2.5",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "glm-5": "zai-org/GLM-5",
}
BITS = {"bf16": 16, "fp8": 8, "fp4": 4, "int4": 4}


def measured(run: MeasuredRun) -> PublishedRun | None:
    """None: the run is disaggregated, has drafts, repeats another, or lacks a figure that the page needs."""
    if run.is_disaggregated or run.drafts or run.is_repeat or not (run.in_flight and run.ttft_s and run.tpot_s):
        return None
    return PublishedRun(
        model=NAMES[run.model],
        gpu=run.device,
        engine=run.engine,
        weight_bits=BITS[run.precision],
        gpus=run.decode_gpus,
        input_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        users=run.in_flight,
        ttft_us=round(run.ttft_s * 1e6),
        tpot_us=round(run.tpot_s * 1e6),
    )


def table() -> str:
    """The file's text: each run once, in the order of its columns."""
    text = io.StringIO()
    rows = {tuple(asdict(server).values()) for run in read_silicon() if (server := measured(run)) is not None}
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(PublishedRun)])
    writer.writerows(sorted(rows))
    return text.getvalue()


if __name__ == "__main__":
    write_result(FILE, table())
