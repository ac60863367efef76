"""Reads `silicon_sample.csv`: each row as it is recorded, then every rule, which leaves its name on what it changed."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bounds.measured_run import MeasuredRun, ServedPlan
from benchmarks.bounds.silicon_rules import AGGREGATED, ROW_RULES, TABLE_RULES, Row, number

SOURCE = "silicon_sample"
DEVICES = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
}
MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-r1",  # the same shapes
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-r1",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "zhipuai/GLM-5": "glm-5",
}


def read_silicon(file: Path, without: str | None = None) -> list[MeasuredRun]:
    """Every row of the file, none left out, after all rules but the one named by `without`."""
    with file.open(encoding="utf-8", newline="") as lines:
        return ruled(list(csv.DictReader(lines)), without)


def ruled(rows: Sequence[Row], without: str | None = None) -> list[MeasuredRun]:
    """The rows as runs, after all rules but the one named by `without`."""
    runs = [as_recorded(row) for row in rows]
    for rule in ROW_RULES:
        if rule.__name__ != without:
            runs = _noting(rule.__name__, runs, (rule(row, run) for row, run in zip(rows, runs, strict=True)))
    for table_rule in TABLE_RULES:
        if table_rule.__name__ != without:
            runs = _noting(table_rule.__name__, runs, table_rule(rows, runs))
    return runs


def as_recorded(row: Row) -> MeasuredRun:
    """What the row says, taken at its word."""
    decode, prefill = ("", "") if row["mode"] == AGGREGATED else ("decode_", "prefill_")
    return MeasuredRun(
        name=row["id"],
        source=SOURCE,
        model=MODELS[row["model"]],
        device=DEVICES[row["gpu"]],
        engine=row["engine"],
        precision=row["precision"] or "fp4",  # of a blank the least, until a rule says more
        prompt_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        prefill_gpus=number(row, f"{prefill}tp_size") * number(row, f"{prefill}attention_dp_size"),
        decode_gpus=number(row, f"{decode}tp_size") * number(row, f"{decode}attention_dp_size"),
        in_flight=int(row["concurrency"]) if row["concurrency"] else None,
        prefill_plan=ServedPlan(tensor=number(row, f"{prefill}tp_size"), experts=number(row, f"{prefill}moe_ep_size")),
        decode_plan=ServedPlan(tensor=number(row, f"{decode}tp_size"), experts=number(row, f"{decode}moe_ep_size")),
        ttft_s=float(row["ttft_ms"]) / 1e3,
        tpot_s=float(row["tpot_ms"]) / 1e3,
        is_disaggregated=row["mode"] != AGGREGATED,
    )


def _noting(name: str, before: Iterable[MeasuredRun], after: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    return [
        new if new == old else replace(new, touched=(*new.touched, name))
        for old, new in zip(before, after, strict=True)
    ]
