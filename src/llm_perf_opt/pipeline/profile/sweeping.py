"""Many runs of one command, read back from the folders that they left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.document import Cell, Column, Kind, Report, Table
from llm_perf_opt.pipeline.profile.run_folder import FAILURE_FILE

_COLUMNS = (
    Column("run"),
    Column("model"),
    Column("mode"),
    Column("new tokens", Kind.COUNT),
    Column("page", Kind.SECONDS),
    Column("first token", Kind.SECONDS),
    Column("decode step", Kind.SECONDS),
    Column("MFU", Kind.RATIO),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The folders of all runs, one row for each, and why some have no figures."""

    runs: tuple[Path, ...]
    report: Report
    failures: tuple[str, ...]


def read_sweep(folder: Path) -> Sweep:
    """The numbered folders in the folder of a sweep."""
    runs = sorted((entry for entry in folder.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name))
    failures = [run / FAILURE_FILE for run in runs if (run / FAILURE_FILE).is_file()]
    table = Table(title="Runs", columns=_COLUMNS, rows=tuple(map(_row, runs)))
    return Sweep(
        runs=tuple(runs),
        report=Report(title=f"{len(runs)} runs in {folder}", tables=(table,)),
        failures=tuple(file.read_text("utf-8").strip() for file in failures),
    )


def _row(run: Path) -> tuple[Cell, ...]:
    if (run / FAILURE_FILE).is_file() or not (run / "metrics.json").is_file():
        return (run.name, "failed", *(None,) * (len(_COLUMNS) - 2))
    found = json.loads((run / "metrics.json").read_text("utf-8"))
    workload, step = found["request"]["workload"], found["decode_step"]
    return (
        run.name,
        found["model"],
        workload["mode"],
        workload["max_new_tokens"],
        found["wall"]["median_ns"] * 1e-9,
        found["first_token"]["median_ns"] * 1e-9,
        None if step is None else step["median_ns"] * 1e-9,
        found["model_figure"]["mfu"],
    )
