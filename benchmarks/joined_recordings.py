"""Join every GPU run at hand with its trace, and put measured next to predicted time, by stage and kind of kernel.

    python -m benchmarks.joined_recordings [--docs]

Eight runs of transformers models are those of tests/facts/gpu_traces: recorded kernels and those of the traced ops are
paired by op and size, each as long as the median of its kind. DeepSeek-OCR on an RTX 5090 is known by stage and family
of kernels, from Nsight Systems: tests/facts/deepseek_ocr/measured-gpu.json. With --docs the tables go to
docs/evidence/joined-recordings.md, and the ladder of each run, from the measured time of its kernels down to the lower
bound, to docs/evidence/advice-examples.md.

LLM_PERF_OPT_GPU_TRACES_DIR names a folder with recordings of others, such as tests/traces of AMD-AGI/TraceLens with
tests/data of facebookresearch/HolisticTraceAnalysis in it: what is read from each is a table of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.eager_kernels import DEVICES, FORWARDS, Compared, Run, compared, durations, recorded_graph
from benchmarks.pages import columns, facts, show_sections
from benchmarks.published_throughput import CONTEXT, GUNDAM_TOKENS, decode_graph, prefill_graph
from benchmarks.runner import parser
from llm_perf_opt.advice.ladder import (
    BELOW_ROOF,
    BEYOND,
    ENGINE,
    EXPERTS,
    GAPS,
    HIDDEN,
    HOST,
    IN_TURN,
    JOINED,
    SCORES,
    TILES,
    UNFUSED,
    ladder_of,
)
from llm_perf_opt.advice.pricing import Pricer
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.links import find_hardware
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.core.recordings.recording import DeviceWork, Recording
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.ops.table import kernels_of
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.predict import predict
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import NOTHING, Band, RateSource, total

MODELS = ("vit-base-224", "qwen1.5-0.5b", "timesformer-base", "owlv2-large")
RTX = "rtx-5090"
_LISTED = 0.95  # of the kernel time of a run; the rest of the kinds is one row
_WHOLE = 200  # kernels; recordings with fewer are samples of one op
_FAMILIES = {
    "gemm": KernelKind.MATMUL,
    "gemv": KernelKind.MATMUL,
    "conv": KernelKind.MATMUL,
    "attention": KernelKind.ATTENTION,
}  # all others are vector kernels


def joined_rows() -> Iterator[dict[str, Any]]:
    """Per run the whole forward, and its kinds of kernels."""
    for gpu, device_id in DEVICES.items():
        times = durations(device_id)
        for model in MODELS:
            yield from _rows(compared(gpu, model, times))


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    by_kind: dict[str, list[Compared]] = {}
    for row in run.rows:
        by_kind.setdefault(row.key.word, []).append(row)
    whole = _sums(run.name, "**forward**", run.rows)
    kinds = (_sums(run.name, word, rows) for word, rows in by_kind.items() if any(row.recorded for row in rows))
    seen = 0.0
    yield whole
    for kind in sorted(kinds, key=lambda kind: -kind["measured_ms"]):
        if seen > _LISTED * whole["measured_ms"]:
            break
        seen += kind["measured_ms"]
        yield kind


def _sums(run: str, what: str, rows: Sequence[Compared]) -> dict[str, Any]:
    low, high, expected = (sum(getattr(row, f"{end}_us") for row in rows) / 1e6 for end in ("low", "high", "expected"))
    recorded_s = sum(row.recorded_us for row in rows) / 1e6
    return _row(run, what, sum(row.recorded for row in rows), recorded_s, Band(low, high, expected))


def _row(run: str, what: str, kernels: int, seconds: float, band: Band | None) -> dict[str, Any]:
    expected_s = 0.0 if band is None else centre(band)
    return {
        "run": run,
        "what": what,
        "kernels": kernels,
        "measured_ms": round(seconds * 1e3, 4),
        "expected_ms": round(expected_s * 1e3, 4),
        "ratio": round(seconds / expected_s, 3) if expected_s else None,
        "is_inside": None if band is None else band.holds(seconds),
    }


def ocr_rows() -> Iterator[dict[str, Any]]:
    """DeepSeek-OCR: a page of 2 x 3 crops, a decode step, and the first calls of the encoders, on the crops."""
    records = {record["id"]: record for record in facts("deepseek_ocr/measured-gpu.json")}
    rates = source_of(find_device(RTX), Execution.EAGER, None)
    prefill, decode = prefill_graph(CONTEXT - GUNDAM_TOKENS), decode_graph(CONTEXT)
    for stage in ("sam", "projector"):
        recorded = records[f"rtx5090-kernels-{stage}"]["metrics"]
        band = _first_call(prefill, stage, rates)
        yield _row("deepseek-ocr", f"**{stage}, the crops**", recorded["kernel_launches"], _seconds(recorded), band)
    for graph, steps in ((prefill, 1), (decode, 64)):
        recorded = records[f"rtx5090-kernels-{graph.phase}"]["metrics"]
        bands = [stage.device_time for stage in predict(graph, rates)]
        title = "prefill with its encoders" if graph is prefill else "decode step"
        launches = recorded["kernel_launches"] // steps
        yield _row("deepseek-ocr", f"**{title}**", launches, _seconds(recorded) / steps, total(bands))
        yield from _by_kind(graph, recorded["by_family"], steps, rates)


def _seconds(recorded: dict[str, Any]) -> float:
    return float(recorded["gpu_kernel_ms_total"]) / 1e3


def _first_call(graph: CallGraph, stage: str, rates: RateSource) -> Band:
    """The ops in the first call of the module that a stage is of."""
    calls, ops = calls_of(graph), ops_of(graph)
    path = {"sam": "model.sam_model", "projector": "model.projector"}[stage]
    first = next(call for call, row in enumerate(calls.path) if graph.paths[row] == path)
    inside = {first}
    for call in range(first + 1, len(calls.path)):  # a child is entered after its parent
        if calls.parent[call] in inside:
            inside.add(call)
    kinds = (graph.op_kinds[ops.kind[row]] for row in range(len(ops.kind)) if ops.call[row] in inside)
    return total(_band(kernel, rates) for kind in kinds for kernel in kernels_of(kind))


def _by_kind(graph: CallGraph, families: dict[str, Any], steps: int, rates: RateSource) -> Iterator[dict[str, Any]]:
    measured: dict[KernelKind, list[float]] = {}
    for family, recorded in families.items():
        sums = measured.setdefault(_FAMILIES.get(family, KernelKind.VECTOR), [0, 0.0])
        sums[0] += recorded["launches"]
        sums[1] += recorded["ms"] / 1e3
    bands: dict[KernelKind, Band] = {}
    for stage in predict(graph, rates):
        for kernel, count in stage.work.kernels.items():
            bands[kernel.kind] = bands.get(kernel.kind, NOTHING) + _band(kernel, rates).times(count)
    for kind, (launches, seconds) in sorted(measured.items(), key=lambda item: -item[1][1]):
        yield _row("deepseek-ocr", str(kind), int(launches) // steps, seconds / steps, bands.get(kind))


def _band(kernel: Any, rates: RateSource) -> Band:
    return total(time.band for time in rates.duration(kernel) or ())


_RUNGS = {  # what is left of the time of the device, in the order of the ladder
    "attention": (SCORES, HIDDEN),
    "not fused": (UNFUSED, JOINED, EXPERTS, ENGINE),
    "gaps": (GAPS,),
    "below the roofline": (BELOW_ROOF, TILES, IN_TURN),
    "between kernels": (BEYOND,),
}


def ladder_rows() -> Iterator[dict[str, Any]]:
    """Each run from the measured time of its kernels to the lower bound; the times add up to the nanosecond."""
    for gpu, device_id in DEVICES.items():
        times = durations(device_id)
        for model in MODELS:
            run, forwards = compared(gpu, model, times), FORWARDS.get(model, 1)
            measured_ns = round(sum(row.recorded_us for row in run.rows) * 1e3 / forwards)
            yield _ladder_row(run.name, recorded_graph(model), device_id, measured_ns)
    records = {record["id"]: record for record in facts("deepseek_ocr/measured-gpu.json")}
    for graph, steps in ((prefill_graph(CONTEXT - GUNDAM_TOKENS), 1), (decode_graph(CONTEXT), 64)):
        measured_s = _seconds(records[f"rtx5090-kernels-{graph.phase}"]["metrics"]) / steps
        yield _ladder_row(f"{RTX}-deepseek-ocr, {graph.phase}", graph, RTX, round(measured_s * 1e9))


def _ladder_row(run: str, graph: CallGraph, device_id: str, measured_ns: int) -> dict[str, Any]:
    """Kernels alone were measured, so the wait for the host is none of it."""
    ladder = ladder_of(Setup(graphs=(graph,), hardware=find_hardware(device_id)), Pricer(), 1)
    stages = [(stage.bottom_ns / stage.runs, {rung.name: rung.time_ns / stage.runs for rung in stage.rungs})
              for stage in ladder.stages]  # fmt: skip
    rungs = Counter[str]()
    for _, named in stages:
        rungs.update({name: time for name, time in named.items() if name != HOST})
    bound = sum(bottom for bottom, _ in stages)
    named = {title: sum(rungs.pop(name, 0) for name in names) for title, names in _RUNGS.items()}
    named["not fused"] += sum(rungs.values())
    unexplained = measured_ns - bound - sum(named.values())
    shown = {title: f"{time / 1e6:.3f}" for title, time in {**named, "bound": bound}.items()}
    return {
        "run": run,
        "measured": f"{measured_ns / 1e6:.3f}",
        "share": f"{100 * unexplained / measured_ns:+.1f} %",
        **shown,
    }


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole recording below a folder, but for the models of `joined_rows`; the same content counts once."""
    seen: set[tuple[Any, ...]] = set()
    for file in sorted(folder.rglob("*.json*")):
        if file.is_file() and not any(
            name in file.name for name in ("google_owlv2", "facebook_", "Falconsai", "Qwen1.5")
        ):
            try:
                recording = read_recording(file)
            except PerfOptError:
                continue
            key = (len(recording.work), recording.device_ns)
            if len(recording.work) >= _WHOLE and key not in seen:
                seen.add(key)
                yield {
                    "file": str(file.relative_to(folder)).partition(".json")[0],
                    "gpu": recording.device_name or "not named",
                    "kernels": len(recording.work),
                    "ms": recording.device_ns / 1e6,
                    "ops": len(recording.ops),
                    "steps": len(recording.steps) or "",
                    "known": _share(recording, [work for work in recording.work if work.op >= 0]),
                    "backward": _share(recording, [work for work in recording.work if _is_backward(recording, work)]),
                }


def _is_backward(recording: Recording, work: DeviceWork) -> bool:
    return any(op.name.startswith("autograd::engine") for op in recording.chain_of(work))


def _share(recording: Recording, work: Sequence[DeviceWork]) -> float:
    return 100 * sum(one.duration_ns for one in work) / (recording.device_ns or 1)


_READ_FORMS = {
    "recording": "`{file}`",
    "GPU": "{gpu}",
    "kernels": "{kernels:,}",
    "kernel time, ms": "{ms:,.1f}",
    "ops of the host": "{ops:,}",
    "steps": "{steps}",
    "launched by an op, %": "{known:.0f}",
    "backward pass, %": "{backward:.0f}",
}
_LADDER_FORMS = {
    "recording": "{run}",
    "measured, ms": "{measured}",
    "not explained": "{share}",
    **{title: f"{{{title}}}" for title in _RUNGS},
    "lower bound": "{bound}",
}
_FORMS = {
    "stage or kind of kernel": "{what}",
    "kernels": "{kernels:,}",
    "measured, ms": "{measured_ms:.3f}",
    "expected, ms": "{expected_ms:.3f}",
    "measured / expected": "{ratio_text}",
    "in band": "{inside}",
}


def _text(rows: list[dict[str, Any]], forms: dict[str, str]) -> str:
    words = {True: "yes", False: "**no**", None: ""}
    shown = (
        {**row, "ratio_text": "-" if row["ratio"] is None else f"{row['ratio']:.2f}", "inside": words[row["is_inside"]]}
        for row in rows
    )
    return columns(shown, forms, "l" * (len(forms) - 5) + "rrrrl")


def _summary(rows: list[dict[str, Any]]) -> str:
    wholes, kinds = ([row for row in rows if row["what"].startswith("**") is whole] for whole in (True, False))
    stages, kernels = (f"{sum(row['is_inside'] is True for row in part)} of {len(part)}" for part in (wholes, kinds))
    return f"**{stages} stages and {kernels} kinds of kernel are in their band**, between the low and high estimate.\n"


def main() -> None:
    options = parser(__doc__, docs="write the tables into docs/evidence/joined-recordings.md").parse_args()
    joined, ocr = list(joined_rows()), list(ocr_rows())
    texts = {
        "joined-summary": _summary([*joined, *ocr]),
        "joined": _text(joined, {"recording": "{run}", **_FORMS}),
        "joined-deepseek-ocr": _text(ocr, _FORMS),
    }
    if folder := os.environ.get("LLM_PERF_OPT_GPU_TRACES_DIR"):
        texts["joined-read"] = columns(read_rows(Path(folder)), _READ_FORMS, "llrrrrrr")
    show_sections("evidence/joined-recordings", texts, is_written=options.docs)
    show_sections(
        "evidence/advice-examples", {"recordings": columns(ladder_rows(), _LADDER_FORMS)}, is_written=options.docs
    )


if __name__ == "__main__":
    main()
