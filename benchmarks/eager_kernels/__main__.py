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
from benchmarks.eager_kernels.comparison import eager_source
from benchmarks.published.rtx5090 import CONTEXT
from benchmarks.published.traced import GUNDAM_TOKENS, decode_graph, prefill_graph
from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.analyses.time.rates import Band, RateSource, total
from llm_perf_opt.core.hardware import find_device
from collections.abc import Iterable, Sequence
from benchmarks.eager_kernels.comparison import Run
from benchmarks.eager_kernels.comparison import compared
from benchmarks.eager_kernels.comparison import DEVICES, durations
from benchmarks.pages import show_sections
from benchmarks.runner import parser


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


DEVELOPED_ON = frozenset({"h100-timesformer-base", "mi300-timesformer-base"})
_LISTED_SHARE = 0.995  # of the recorded time; the rest of a run is one row
_COLUMNS = ("recorded", "recorded_us", "ours", "expected_us", "low_us", "high_us", "in_band")


def as_data(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The runs as the data file holds them: by word, the longest first."""
    return [
        {
            "run": run.name,
            "is_developed_on": run.name in DEVELOPED_ON,
            **{name: round(run.total(name), 1) for name in _COLUMNS},
            "launch_error": round(run.launch_error, 4),
            "time_error": round(run.time_error, 4),
            "share_in_band": round(run.share_in_band, 4),
            "ops": _by_word(run),
        }
        for run in runs
    ]


def _by_word(run: Run) -> list[dict[str, Any]]:
    words = dict.fromkeys(row.key.word for row in run.rows)
    found: list[dict[str, Any]] = []
    for word in words:
        rows = [row for row in run.rows if row.key.word == word]
        sums = {name: round(float(sum(getattr(row, name) for row in rows)), 1) for name in _COLUMNS}
        origins = dict.fromkeys(rate for row in rows for rate in row.rates)
        found.append({"op": word, **sums, "origins": list(origins)[:4]})
    return sorted(found, key=lambda op: -max(op["recorded_us"], op["expected_us"]))


def sections(data: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The marked sections of the page."""
    return {"summary": "\n".join(_summary(data)), "by-op": "\n\n".join(_ops(run) for run in data)}


def _summary(data: Sequence[dict[str, Any]]) -> Iterable[str]:
    yield "| recording | launches recorded | ours | kernel time recorded, ms | expected | band | kernels in band |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for run in data:
        mark = " (developed on)" if run["is_developed_on"] else ""
        yield (
            f"| {run['run']}{mark} | {run['recorded']:,.0f} | {run['ours']:,.0f} ({run['launch_error']:+.1%}) "
            f"| {run['recorded_us'] / 1e3:.2f} | {run['expected_us'] / 1e3:.2f} ({run['time_error']:+.1%}) "
            f"| {run['low_us'] / 1e3:.2f} - {run['high_us'] / 1e3:.2f} | {run['share_in_band']:.0%} |"
        )


def _ops(run: dict[str, Any]) -> str:
    lines = [
        f"### {run['run']}",
        "",
        "| op | launches recorded | ours | recorded, us | expected, us | band, us | in band | origin |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    listed, seen = _LISTED_SHARE * run["recorded_us"], 0.0
    rest: list[dict[str, Any]] = []
    for op in run["ops"]:
        if seen < listed:
            seen += op["recorded_us"]
            lines.append(_line(op["op"], op, "; ".join(op["origins"])))
        else:
            rest.append(op)
    if rest:
        sums = {name: sum(op[name] for op in rest) for name in _COLUMNS}
        lines.append(_line(f"{len(rest)} others", sums, ""))
    return "\n".join(lines)


def _line(name: str, sums: dict[str, Any], origin: str) -> str:
    return (
        f"| {name} | {sums['recorded']:,.0f} | {sums['ours']:,.0f} | {sums['recorded_us']:,.0f} "
        f"| {sums['expected_us']:,.0f} | {sums['low_us']:,.0f} - {sums['high_us']:,.0f} | {sums['in_band']:,.0f} "
        f"| {origin} |"
    )


MODELS = ("timesformer-base", "vit-base-224", "qwen1.5-0.5b", "owlv2-large")


def main() -> None:
    options = parser(__doc__, docs="write the tables of the page and its data file").parse_args()
    by_gpu = {gpu: durations(device) for gpu, device in DEVICES.items()}
    runs = as_data(compared(gpu, model, by_gpu[gpu]) for gpu in DEVICES for model in MODELS)
    ocr = list(measured_rows())
    texts = {**sections(runs), "deepseek-ocr": table(ocr)}
    data = {"runs": runs, "deepseek_ocr": ocr}
    show_sections("eager-kernels", texts, is_written=options.docs, data=data)


if __name__ == "__main__":
    main()
