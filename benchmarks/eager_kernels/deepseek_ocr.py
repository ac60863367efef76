"""DeepSeek-OCR in eager PyTorch: what was measured on an RTX 5090, and the bands on devices with measured kernels.

    python -m benchmarks.eager_kernels.deepseek_ocr

One page of 2 x 3 crops with 913 tokens, then one decode step. The records and their caveats are in
tests/facts/deepseek_ocr/measured-gpu.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.eager_kernels.rates import eager_source
from benchmarks.published.rtx5090 import CONTEXT
from benchmarks.published.traced import GUNDAM_TOKENS, decode_graph, prefill_graph
from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.analyses.time.rates import Band, RateSource, total
from llm_perf_opt.core.hardware import find_device

FACTS = Path(__file__).parents[2] / "tests" / "facts" / "deepseek_ocr" / "measured-gpu.json"
RECORDED_ON = "rtx-5090"
DEVICES = (RECORDED_ON, "h100-sxm", "a100-sxm-40g")
PHASES = ("prefill", "decode")


def measured_rows() -> Iterator[dict[str, Any]]:
    """Per device and phase the band of device and wall, by data sheet and by the best rates, and what was measured."""
    measured = _measured()
    for device in DEVICES:
        below = DataSheetRates(find_device(device))
        for phase in PHASES:
            plain, best = (_predicted(phase, source) for source in (below, eager_source(device)))
            for what, (was, now) in {
                "device busy": (_busy(plain), _busy(best)),
                "wall": (_wall(plain), _wall(best)),
            }.items():
                figures = measured.get((phase, what), ()) if device == RECORDED_ON else ()
                yield {
                    "device": device,
                    "phase": phase,
                    "what": what,
                    "measured_ms": list(figures),
                    "by_data_sheet_ms": _ends(was),
                    "band_ms": _ends(now),
                    "width": round(now.high / now.low, 2),
                    "is_inside": all(now.holds(figure / 1e3) for figure in figures) if figures else None,
                }


def _measured() -> dict[tuple[str, str], tuple[float, ...]]:
    records = {record["id"]: record["metrics"] for record in json.loads(FACTS.read_text(encoding="utf-8"))}
    summary = records["rtx5090-derived-summary"]
    busy = records["rtx5090-kernels-prefill"]["gpu_kernel_ms_total"]
    again = records["rtx5090-crosscheck-prefill-gpu"]["prefill_gpu_busy_ms_per_image"]
    return {
        ("prefill", "device busy"): (busy, again),
        ("prefill", "wall"): _least_and_most(summary["prefill_ms_warm"]["five_untraced_runs"]),
        ("decode", "device busy"): (summary["decode_gpu_busy_ms_per_token"],),
        ("decode", "wall"): _least_and_most(summary["decode_ms_per_token"]["untraced_runs"]),
    }


def _least_and_most(figures: Sequence[float]) -> tuple[float, ...]:
    return min(figures), max(figures)


def _predicted(phase: str, source: RateSource) -> tuple[StageTime, ...]:
    graph = prefill_graph(CONTEXT - GUNDAM_TOKENS) if phase == "prefill" else decode_graph(CONTEXT)
    return predict(graph, source)


def _busy(stages: Sequence[StageTime]) -> Band:
    return total(stage.device_time for stage in stages)


def _wall(stages: Sequence[StageTime]) -> Band:
    return total(stage.wall for stage in stages)


def _ends(band: Band) -> list[float]:
    return [float(f"{edge * 1e3:.4g}") for edge in (band.low, band.high)]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| device | phase | time | measured, ms | band by data sheet | band | high / low | inside |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        measured = " - ".join(f"{figure:g}" for figure in row["measured_ms"]) or "not measured"
        inside = {True: "yes", False: "**no**", None: ""}[row["is_inside"]]
        lines.append(
            f"| `{row['device']}` | {row['phase']} | {row['what']} | {measured} | {_text(row['by_data_sheet_ms'])} "
            f"| {_text(row['band_ms'])} | {row['width']:.2f} | {inside} |"
        )
    return "\n".join(lines)


def _text(ends: Sequence[float]) -> str:
    return f"{ends[0]:g} - {ends[1]:g}"


if __name__ == "__main__":
    print(table(list(measured_rows())))
