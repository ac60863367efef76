"""Replay what others measured on real servers through vLLM's scheduler, and judge it.

    python -m benchmarks.serving_replay recorded [--docs]    four recorded runs, request by request, and the cache knee
    python -m benchmarks.serving_replay pages [--docs]       pages per second of OCR models
    python -m benchmarks.serving_replay field [--docs]       every aggregated record: about an hour of CPU, resumable:
                                                             schedules are kept in --schedules
    python -m benchmarks.serving_replay sglang [--docs]      a sample of SGLang's records through its own scheduler

Needs vLLM's environment (docs/reference/vllm.md) and the kernel tables. `--docs` writes
docs/evidence/serving-replay.md and its data.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.bounds.page import svg_file
from benchmarks.pages import DOCS, show_sections
from benchmarks.records import read_answers
from benchmarks.runner import parser
from benchmarks.serving_replay import page
from benchmarks.serving_replay.field_records import Schedules, read_kept, replays
from benchmarks.serving_replay.own_scheduler import judged, medians, sample
from benchmarks.serving_replay.page import answered, by_group, figures, fitted, sets
from benchmarks.serving_replay.recorded_runs import (
    RecordedRun,
    Served,
    errors,
    job_of,
    knee_rows,
    page_rows,
    recorded_runs,
    served,
    table_of,
)
from benchmarks.serving_times.estimates import aggregated_runs, is_frozen
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.requests import Replayed
from llm_perf_opt.timing.step.step_table import StepTable

DATA = DOCS / "data" / "serving_replay.json"
KEPT = DOCS / "data" / "serving_replay.jsonl"
SCHEDULES = Path.home() / ".cache" / "llm-perf-opt" / "replay-schedules"
PACE_CLOSE, PACE_TRIES = 0.003, 4


def recorded(*, is_written: bool) -> dict[str, Any]:
    """Every recorded run by predicted step times, and by those times at the pace of the record."""
    rows: list[dict[str, Any]] = []
    with ReplayProcess() as process:
        for run in recorded_runs():
            table = table_of(run)
            first = process.replay_replicas(job_of(run, table))
            rows.append(_row(run, first, "as predicted"))
            paced, factor = _at_recorded_pace(process, run, table, first)
            rows.append(_row(run, paced, f"x {factor:.2f}, the recorded pace"))
            if is_written:
                chart = svg_file(page.overlay(run, [replayed.steps for replayed in paced]))
                (DOCS / "data" / f"serving-replay-{run.name}.svg").write_text(chart, encoding="utf-8")
        knee = list(knee_rows(process))
    return {"recorded": rows, "knee": knee}


def pages() -> dict[str, Any]:
    """Pages per second of OCR models."""
    return {"ocr": list(page_rows())}


def _at_recorded_pace(
    process: ReplayProcess, run: RecordedRun, table: StepTable, done: list[Replayed]
) -> tuple[list[Replayed], float]:
    """One factor for all steps, such that the mean time per token is the recorded one."""
    factor, wanted = 1.0, fmean(run.served.tpot)
    for _ in range(PACE_TRIES):
        off = wanted / fmean(served(done).tpot)
        if abs(off - 1) < PACE_CLOSE:
            break
        factor *= off
        done = process.replay_replicas(job_of(run, table.corrected(decoding=factor, prompts=factor)))
    return done, factor


def _row(run: RecordedRun, done: list[Replayed], steps: str) -> dict[str, Any]:
    mine = served(done)
    shifts = [abs(ours - theirs) for ours, theirs in zip(_places(run.served), _places(mine), strict=True)]
    return {
        "name": run.name,
        "steps": steps,
        "errors": {name: round(value, 4) for name, value in errors(run.served, mine).items()},
        "requests": len(shifts),
        "moved": sum(shift > 0 for shift in shifts),
        "shift": max(shifts),
    }


def _places(engine: Served) -> list[int]:
    """The place of each request in the order of first tokens; those of one step keep their order of arrival."""
    order = sorted(range(len(engine.first)), key=lambda at: (round(engine.first[at], 3), at))
    return [place for _, place in sorted(zip(order, range(len(order)), strict=True))]


def field(schedules: Path | None) -> dict[str, Any]:
    """Every aggregated record: replayed, or without `schedules` as an earlier call has left them."""
    runs = {run.name: run for run in aggregated_runs()}
    if schedules is not None:
        lines = (
            json.dumps(
                {
                    name: float(f"{value:.6g}") if isinstance(value, float) else value
                    for name, value in asdict(replay).items()
                }
            )
            + "\n"
            for replay in replays(list(runs.values()), schedules)
        )
        write_whole(KEPT, [line.encode() for line in lines])
    pairs = [(runs[replay.name], replay) for replay in read_kept(KEPT).values()]
    replayed, answers = answered(pairs), read_answers()
    return {
        "sets": {name: figures(some, answers) for name, some in sets(replayed).items()},
        "groups": [(kind, name, figures(some, answers)) for kind, name, some in by_group(replayed)],
        "first_token": fitted([pair for pair in pairs if not is_frozen(pair[0])]),
    }


def own_scheduler(schedules: Path) -> dict[str, Any]:
    """A sample of SGLang's records through both schedulers."""
    with ReplayProcess() as process:
        rows = []
        for row in judged(sample(), Schedules(process, schedules)):
            rows.append(row)
            print(row, flush=True)
    return {"own_scheduler": {**medians(rows), "rows": [asdict(row) for row in rows]}}


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser(__doc__, docs="write the page", kept="of the field, judge what an earlier call has left")
    made.add_argument("what", choices=("recorded", "pages", "field", "sglang"))
    made.add_argument("--schedules", type=Path, default=SCHEDULES, help="where schedules of the field are kept")
    options = made.parse_args(arguments)
    logging.disable(logging.WARNING)  # what a model's own code says of its configuration
    asked = {"recorded": lambda: recorded(is_written=options.docs), "pages": pages}
    asked["sglang"] = lambda: own_scheduler(options.schedules)
    asked["field"] = lambda: field(None if options.kept else options.schedules)
    data = asked[options.what]()
    show_sections("evidence/serving-replay", page.sections(data), is_written=options.docs)
    if options.docs:
        kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
        DATA.write_text(json.dumps({**kept, **data}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
