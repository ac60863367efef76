"""The closed forms of the released model for the workloads of the facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.formulas import (
    MatrixWork,
    Views,
    clip_work,
    decode_passes,
    decoder_work,
    prefill_pass,
    projector_work,
    sam_work,
    total_flops,
)

RELEASED = DeepSeekOcrConfig()
OUTSIDE_THE_IMAGE = 10  # tokens in the 48 counts: the first of the sequence and nine of text


def module_flops(work: Iterable[MatrixWork], path: str) -> int:
    """FLOPs of one module and everything inside it; the empty path is the whole model."""
    return total_flops(piece for piece in work if not path or f"{piece.path}.".startswith(f"{path}."))


def vision_work(config: DeepSeekOcrConfig, views: Views) -> tuple[MatrixWork, ...]:
    """All three stages: SAM, then CLIP on its features, then the projector on both."""
    return (*sam_work(config.sam, views), *clip_work(config, views), *projector_work(config, views))


def tiles_and_page(tiles: int, base_size: int = 1024, image_size: int = 640) -> tuple[MatrixWork, ...]:
    page = vision_work(RELEASED, Views(pixels=base_size))
    return (*vision_work(RELEASED, Views(pixels=image_size, views=tiles)), *page) if tiles else page


def work_of_run(run: dict[str, Any]) -> tuple[MatrixWork, ...]:
    """One of the twelve runs: a prefill with its vision, or one step on a context."""
    if run["phase"] == "decode_step":
        return decoder_work(RELEASED.decoder, decode_passes(run["context_len"]))
    columns, rows = run["crops"]
    tiles = columns * rows if columns * rows > 1 else 0
    prefill = decoder_work(RELEASED.decoder, prefill_pass(run["seq_len"]))
    return (*tiles_and_page(tiles, run["base_size"], run["image_size"]), *prefill)


def work_of_record(record: dict[str, Any]) -> tuple[MatrixWork, ...]:
    """One of the 48 counts, told apart by its name: vision, vision with prefill, or decode steps."""
    workload = record["workload"]
    tokens = workload["image_tokens"] + OUTSIDE_THE_IMAGE
    vision = tiles_and_page(workload["num_crops"], workload["base_size"], workload["image_size"])
    if record["id"].startswith("flopcounter-vision+prefill-"):
        return (*vision, *decoder_work(RELEASED.decoder, prefill_pass(tokens)))
    if record["id"].startswith("flopcounter-vision-"):
        return vision
    return decoder_work(RELEASED.decoder, decode_passes(tokens, steps=workload["decode_steps"]))
