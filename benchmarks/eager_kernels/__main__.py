"""Compare eight recordings of eager PyTorch with predictions; write the tables of docs/eager-kernels.md with --docs.

    python -m benchmarks.eager_kernels [--docs]

Reads tests/facts/gpu_traces, traces the four models without weights, and times every kernel. About a minute.
DeepSeek-OCR is that of an RTX 5090: one page of 2 x 3 crops with 913 tokens, then one decode step. Its records and
their caveats are in tests/facts/deepseek_ocr/measured-gpu.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.eager_kernels.comparison import DEVICES, Run, compared, durations, eager_source
from benchmarks.pages import columns, facts, show_sections
from benchmarks.published.cases import GUNDAM_TOKENS, decode_graph, prefill_graph
from benchmarks.published.rtx5090 import CONTEXT
from benchmarks.runner import parser
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rates import Band, RateSource, total

RECORDED_ON = "rtx-5090"
OCR_DEVICES = (RECORDED_ON, "h100-sxm", "a100-sxm-40g")
PHASES = ("prefill", "decode")


def measured_rows() -> Iterator[dict[str, Any]]:
    """Per device and phase the band of device and wall, by data sheet and by the best rates, and what was measured."""
    measured = _measured()
    for device in OCR_DEVICES:
        below = DataSheetRates(find_device(device))
        for phase in PHASES:
            plain, best = (_predicted(phase, source) for source in (below, eager_source(device)))
            for what, field in {"device busy": "device_time", "wall": "wall"}.items():
                was, now = (total(getattr(stage, field) for stage in stages) for stages in (plain, best))
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
    records = {record["id"]: record["metrics"] for record in facts("deepseek_ocr/measured-gpu.json")}
    summary = records["rtx5090-derived-summary"]
    busy = records["rtx5090-kernels-prefill"]["gpu_kernel_ms_total"]
    prefills = summary["prefill_ms_warm"]["five_untraced_runs"]
    decodes = summary["decode_ms_per_token"]["untraced_runs"]
    again = records["rtx5090-crosscheck-prefill-gpu"]["prefill_gpu_busy_ms_per_image"]
    return {
        ("prefill", "device busy"): (busy, again),
        ("prefill", "wall"): (min(prefills), max(prefills)),
        ("decode", "device busy"): (summary["decode_gpu_busy_ms_per_token"],),
        ("decode", "wall"): (min(decodes), max(decodes)),
    }


def _predicted(phase: str, source: RateSource) -> tuple[StageTime, ...]:
    graph = prefill_graph(CONTEXT - GUNDAM_TOKENS) if phase == "prefill" else decode_graph(CONTEXT)
    return predict(graph, source)


def _ends(band: Band) -> list[float]:
    return [float(f"{edge * 1e3:.4g}") for edge in (band.low, band.high)]


def ocr_table(rows: Sequence[dict[str, Any]]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    shown = (
        {
            **row,
            "measured": " - ".join(f"{figure:g}" for figure in row["measured_ms"]) or "not measured",
            "inside": words[row["is_inside"]],
        }
        for row in rows
    )
    return columns(
        shown,
        {
            "device": "`{device}`",
            "phase": "{phase}",
            "time": "{what}",
            "measured, ms": "{measured}",
            "band by data sheet": "{by_data_sheet_ms[0]:g} - {by_data_sheet_ms[1]:g}",
            "band": "{band_ms[0]:g} - {band_ms[1]:g}",
            "high / low": "{width:.2f}",
            "inside": "{inside}",
        },
        "lllrrrrl",
    )


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
    recordings = ({**run, "mark": " (developed on)" if run["is_developed_on"] else ""} for run in map(_in_ms, data))
    summary = columns(
        recordings,
        {
            "recording": "{run}{mark}",
            "launches recorded": "{recorded:,.0f}",
            "ours": "{ours:,.0f} ({launch_error:+.1%})",
            "kernel time recorded, ms": "{recorded_ms:.2f}",
            "expected": "{expected_ms:.2f} ({time_error:+.1%})",
            "band": "{low_ms:.2f} - {high_ms:.2f}",
            "kernels in band": "{share_in_band:.0%}",
        },
    )
    return {"summary": summary, "by-op": "\n\n".join(_ops(run) for run in data)}


def _in_ms(run: dict[str, Any]) -> dict[str, Any]:
    return {**run, **{name.replace("_us", "_ms"): run[name] / 1e3 for name in _COLUMNS if name.endswith("_us")}}


def _ops(run: dict[str, Any]) -> str:
    listed, seen = _LISTED_SHARE * run["recorded_us"], 0.0
    rows: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for op in run["ops"]:
        (rows if seen < listed else rest).append({**op, "origin": "; ".join(op["origins"])})
        seen += op["recorded_us"] if seen < listed else 0.0
    if rest:
        sums = {name: sum(op[name] for op in rest) for name in _COLUMNS}
        rows.append({"op": f"{len(rest)} others", **sums, "origin": ""})
    forms = {
        "op": "{op}",
        "launches recorded": "{recorded:,.0f}",
        "ours": "{ours:,.0f}",
        "recorded, us": "{recorded_us:,.0f}",
        "expected, us": "{expected_us:,.0f}",
        "band, us": "{low_us:,.0f} - {high_us:,.0f}",
        "in band": "{in_band:,.0f}",
        "origin": "{origin}",
    }
    return f"### {run['run']}\n\n{columns(rows, forms, 'lrrrrrrl')}"


MODELS = ("timesformer-base", "vit-base-224", "qwen1.5-0.5b", "owlv2-large")


def main() -> None:
    options = parser(__doc__, docs="write the tables of the page and its data file").parse_args()
    by_gpu = {gpu: durations(device) for gpu, device in DEVICES.items()}
    runs = as_data(compared(gpu, model, by_gpu[gpu]) for gpu in DEVICES for model in MODELS)
    ocr = list(measured_rows())
    texts = {**sections(runs), "deepseek-ocr": ocr_table(ocr)}
    data = {"runs": runs, "deepseek_ocr": ocr}
    show_sections("eager-kernels", texts, is_written=options.docs, data=data)


if __name__ == "__main__":
    main()
