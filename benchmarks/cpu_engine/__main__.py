"""Serve two small models with the real engine on this machine's processor, and replay the same by its calibration.

    python -m benchmarks.cpu_engine record    calibrate and serve: a quarter of an hour of one core
    python -m benchmarks.cpu_engine judge     replay what was recorded; writes its section of
    docs/evidence/serving-replay.md

Needs vLLM for processors (docs/reference/vllm.md). Everything is on the clock of processor time, with one thread: a
busy machine
then changes little but its caches. Steps of one kind of traffic correct the table, the two others judge it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from msgspec import convert

from benchmarks.cpu_engine.calibrated_time import CalibratedTimer
from benchmarks.cpu_engine.loads import DTYPE, MODELS, Load, loads, section, times_of
from benchmarks.pages import DOCS, show_sections
from benchmarks.vllm_schedules.cases import FOLDER, in_vllm
from llm_perf_opt.api.tracing import trace
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.measurements.calibrate.calibrate import calibrate
from llm_perf_opt.measurements.serving_results import MeasuredStep
from llm_perf_opt.serving.capacity.measured_server import corrected, step_factors
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.timing.step.engine_blocks import engine_blocks
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import StepRange, step_table

DATA = DOCS / "data" / "cpu_engine.json"
_REACH = StepRange(tokens=512, sequences=64, context=4096)


def record() -> None:
    """The step table of the calibration, and what the real engine did, model by model."""
    measured = calibrate(dtype=DTYPE, clock="cpu", threads=1)
    models = {model: {"table": asdict(calibrated_table(model, measured)), "runs": real_runs(model)} for model in MODELS}
    versions = {**measured.library_versions, "vllm": find().release}
    text = json.dumps({"machine": measured.title, "versions": versions, "models": models}, separators=(",", ":"))
    DATA.write_text(text + "\n", encoding="utf-8")


def judge() -> None:
    """Every load of every model: measured, by the calibration, and corrected by the steps of each other load."""
    models, rows = json.loads(DATA.read_text(encoding="utf-8"))["models"], []
    with ReplayProcess() as process:
        for model, kept in models.items():
            table, runs, named = convert(kept["table"], StepTable), kept["runs"], loads(model)
            tables = {"calibration": table}
            for name in named:
                first = next(run for run in runs if run["load"] == name)
                tables[f"corrected by {name!r}"] = _corrected(table, first)
            for name, load in named.items():
                same = [run for run in runs if run["load"] == name]
                wanted = {kind: priced for kind, priced in tables.items() if repr(name) not in kind}
                rows.append(
                    {
                        "model": model,
                        "load": name,
                        "tries": [times_of(run["requests"]) for run in same],
                        "replayed": {kind: _replayed(process, load, priced) for kind, priced in wanted.items()},
                        "beside": fmean(run["loop_s"] / run["busy_s"] - 1 for run in same),
                    }
                )
    show_sections("evidence/serving-replay", {"cpu": section(rows)}, is_written=True)


def real_runs(model: str) -> list[dict[str, Any]]:
    """Of the real engine, in a process of vLLM's own Python."""
    with scratch_folder() as folder:
        out = folder / "runs.json"
        in_vllm("benchmarks.cpu_engine.real_runs", model, str(out), OMP_NUM_THREADS="1")
        return json.loads(out.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def calibrated_table(model: str, calibration: Calibration) -> StepTable:
    """From the model's trace; nothing of an engine is in it but which kernels it runs."""
    graph = trace(FOLDER / "models" / model, dtype=DTYPE, prompt_tokens=64).graphs[-1]
    timer = CalibratedTimer(calibration, DTYPE)
    return step_table(engine_blocks(graph), timer, ParallelPlan(), reach=_REACH, padded_to=())


def _corrected(table: StepTable, run: Mapping[str, Any]) -> StepTable:
    steps, requests = run["steps"], run["requests"]
    columns = zip(steps["prompt_tokens"], steps["decoding"], steps["duration_s"], strict=True)
    measured = [
        MeasuredStep(prompts=bool(new), prompt_tokens=new, decoding=some, decoded_tokens=some, seconds=seconds)
        for new, some, seconds in columns
    ]
    context = fmean(requests["prompt_tokens"]) + fmean(requests["output_tokens"]) / 2
    factors = step_factors(measured, table, context)
    print(*(note.text for note in factors.notes()))
    return corrected(table, factors)


def _replayed(process: ReplayProcess, load: Load, table: StepTable) -> dict[str, float]:
    settings = load.settings()
    settings = replace(settings, model=str(FOLDER / settings.model))
    replayed = process.replay(ReplayJob(settings=settings, traffic=load.traffic(), table=table))
    return times_of(asdict(replayed.requests))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    {"record": record, "judge": judge}[sys.argv[1]]()
