"""Every writer by itself, a thousand times: errors, a full disk, kills, and two of them at once. No half file, ever.

`write_faults` and `kills` break whole commands, which take seconds. Here what is written was made before, so that a
case takes milliseconds. A name holds the old file or the new one, the error says what to do, nothing temporary stays,
and the same call then works.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

import llm_perf_opt as lpo
from llm_perf_opt.api.ask import study_page, study_view
from llm_perf_opt.api.export import _write_matrix
from llm_perf_opt.api.static_analysis import _written
from llm_perf_opt.core.callgraph import write_callgraph
from llm_perf_opt.core.callgraph.runtime_log import write_runtime_log
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.core.hardware.calibration import write_calibration
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.output_files import PREFIX, cannot_write, scratch_folder, write_result
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plugins import CALIBRATORS
from llm_perf_opt.core.store import write_entry
from llm_perf_opt.exports.export_source import PartFiles
from llm_perf_opt.exports.onnx_trial import _moved, _save
from llm_perf_opt.measurements.profile.run_folder import RunFolder, failure_kept
from llm_perf_opt.measurements.timed.operator_pass import _export
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.released_folder import write_engine_folder
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.serving.deployment_files import write_deployment
from llm_perf_opt.serving.engine_command import EngineDeployment
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.sweeps.studies.parquet_store import StudyManifest, StudyStore, rows_table
from llm_perf_opt.training.trainer_files import write_trainer
from llm_perf_opt.training.training_run import TrainingMethod, TrainingPlan, TrainingRun, state_bytes
from scripts.campaigns.file_kinds import LLAMA, made_calibration, small_module
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.rows import Row
from scripts.campaigns.verb_faults import ERRORS, Point, error_name, file_limit, planned, points_of, raise_planned
from scripts.campaigns.verbs import CONFIG, STUDY

FULL, QUICK = 1_000, 20
SLOW_S = 20.0
OLD = b"the old file"
KILL, PAIR, FULL_DISK = "kill", "two writers", "a full disk"
# Of twenty cases: a kill at a point, two processes at once, a file that may not grow, errors at a point.
WAYS = (KILL, KILL, PAIR, *(FULL_DISK,) * 5, *("error",) * 12)
Write = Callable[[Path], object]
_MEMORY = Path("/dev/shm")


def made(folder: Path) -> Any:
    """What writers are given: made once of tiny models in `folder`, before anything is written."""
    module, arguments = small_module(), (torch.zeros(2, 8),)
    trace = lpo.trace(module, arguments)
    for name, fields in {"tiny": CONFIG, "llama": LLAMA}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(fields), "utf-8")
    (folder / "study.yaml").write_text(json.dumps(STUDY), "utf-8")
    lpo.study(folder / "study.yaml", out=folder / "results", workers=1)
    with torch.profiler.profile() as profiler:
        module(*arguments)
    profiler.export_chrome_trace(str(folder / "chrome-trace.json"))
    recorded = (folder / "chrome-trace.json").read_bytes()
    return SimpleNamespace(
        trace=trace,
        cost=trace.cost(),
        sweep=lpo.sweep(folder / "tiny", users=2, input="16..19"),
        view=study_view(folder / "results"),
        profiler=mock.Mock(export_chrome_trace=partial(_saved, recorded)),
        program=torch.export.export(module, arguments),
        adapter=HuggingFaceAdapter(folder / "llama", trust_remote_code=False),
    )


def _saved(content: bytes, path: str) -> None:
    """As torch writes a trace, which it does once only: where that fails, nothing is said."""
    with suppress(OSError):
        Path(path).write_bytes(content)


def _calibrated(place: Path) -> None:
    with mock.patch.dict(CALIBRATORS._entries, {"torch": f"{__name__}:stored_calibration"}):
        lpo.calibrate(out=place / "machine.json", force=True)


def stored_calibration(**options: object) -> object:
    return made_calibration()


def _page_of(view: object, place: Path) -> None:
    with mock.patch("llm_perf_opt.api.ask.study_view", lambda *_: view):
        study_page("results", place / "page.html", force=True)


def _training_run() -> TrainingRun:
    return TrainingRun(
        method=TrainingMethod(),
        states=state_bytes("adamw", "mixed"),
        plan=TrainingPlan(),
        cluster=parse_cluster("h100-sxm"),
        sequence=64,
        micro_batch=1,
        sequences=8,
    )


def _failed(place: Path) -> None:
    with failure_kept(place, ["a=1"]):
        raise PerfOptError("It failed.", why="on purpose", fix="none")


def _weighted(program: Any, place: Path) -> None:
    """As `write_weighted` does it, without the checks between."""
    with scratch_folder(place) as scratch:
        try:
            _save(program, scratch / "part.pt2")
        except OSError as error:
            raise cannot_write(place / "part", error) from error
        list(_moved(scratch, place, [mock.Mock(file="part.pt2")]))


def _deployment() -> EngineDeployment:
    device = load_devices().devices["h100-sxm"]
    settings = EngineSettings(model="unused", device=SeenDevice.of(device), plan=ParallelPlan(tp=2))
    return EngineDeployment(settings=settings, model="org/model", device=device, replicas=2)


def _study_part(place: Path) -> None:
    rows = rows_table([{"status": "ok", "study": "tiny", "global_batch": number} for number in range(50)])
    StudyStore(str(place)).write("tiny", "m", "part-1-2", [rows], "01234567")


def _study_manifest(place: Path) -> None:
    record = StudyManifest(study="tiny", run="01234567", tool_version="1", points=9, stems=["part-1-2"], parts={})
    StudyStore(str(place)).write_manifest(record)


WRITERS: dict[str, Callable[[Any], Write]] = {
    "one file": lambda _: lambda place: write_result(place / "result.txt", "a line\n" * 500),
    "call graph": lambda world: lambda place: write_callgraph(world.trace.graphs[0], place / "a.json", overwrite=True),
    "entry of the cache": lambda _: lambda place: write_entry(place / "a.entry", "an answer", b"content" * 500),
    "runtime log": lambda world: (
        lambda place: write_runtime_log(world.trace.graphs[0], place / "a.json", overwrite=True)
    ),
    "function file": lambda world: lambda place: world.sweep.save_function(place / "x.function.json", force=True),
    "calibration": lambda _: lambda place: write_calibration(made_calibration(), place / "machine.json"),
    "measured machine": lambda _: _calibrated,
    "report": lambda world: lambda place: world.cost.save(place / "report.html", force=True),
    "cost files": lambda world: lambda place: world.cost.save_files(place, force=True),
    "table of an older script": lambda world: lambda place: _written(place / "static.md", world.cost.to_json()),
    "drawing": lambda world: lambda place: world.trace.graph().save(place / "graph.mmd", force=True),
    "points of a sweep": lambda world: lambda place: world.sweep.save_points(place / "points.csv", force=True),
    "export matrix": lambda world: lambda place: _write_matrix(world.cost.report(), place),
    "file of a run": lambda world: lambda place: RunFolder(place).write_json("metrics.json", world.cost.to_dict()),
    "failure of a run": lambda _: _failed,
    "page of a study": lambda world: partial(_page_of, world.view),
    "Chrome trace": lambda world: lambda place: _export(world.profiler, place / "chrome-trace.json", {}),
    "exported part": lambda world: lambda place: PartFiles("part", place).save_onnx(b"graph" * 500),
    "exported part with weights": lambda world: partial(_weighted, world.program),
    "files of a deployment": lambda _: lambda place: write_deployment(place, _deployment(), force=True),
    "files of a trainer": lambda _: lambda place: write_trainer(place, "trl", "tiny", _training_run(), force=True),
    "part of a study": lambda _: _study_part,
    "manifest of a study": lambda _: _study_manifest,
    "folder for an engine": lambda world: world.adapter.write_engine_folder,
    "folder of DeepSeek-OCR for an engine": lambda _: partial(write_engine_folder, DeepSeekOcrConfig()),
}


def campaign_writers(*, quick: bool, seed: int) -> list[Row]:
    """One row for each writer."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name, quiet():
        folder = Path(name).resolve()
        (folder / "inputs").mkdir()
        content = made(folder / "inputs")
        return [
            attacked(
                writer, make(content), folder / "written", QUICK if quick else FULL, random.Random(f"{seed} {writer}")
            )
            for writer, make in WRITERS.items()
        ]


def attacked(name: str, write: Write, place: Path, count: int, draw: random.Random) -> Row:
    """This many cases of one writer, in a folder of its own."""
    fill(place, {})
    write(place)
    clean = files_in(place)
    points = points_of(lambda: write(place), place)
    findings: list[str] = []
    if files_in(place) != clean:
        findings.append(f"{name}: two calls write different bytes")
    for number in range(count):
        old = dict.fromkeys(clean, OLD) if (number + number // len(WAYS)) % 2 else {}
        fill(place, old)
        way, point = WAYS[number % len(WAYS)], draw.choice(points)
        began = time.monotonic()
        failures = [*_cases(way, write, place, point, draw, old, clean)]
        if time.monotonic() - began > SLOW_S:
            failures.append(f"took more than {SLOW_S:.0f} s")
        findings += [f"{name}, {way} at {point[0]} {point[1]}, case {number}: {finding}" for finding in failures]
    return Row(f"{name}, {len(points)} points", count, findings)


def _cases(
    way: str,
    write: Write,
    place: Path,
    point: Point,
    draw: random.Random,
    old: Mapping[str, bytes],
    clean: Mapping[str, bytes],
) -> Iterator[str]:
    """What one case did wrong."""
    if way == KILL:
        with planned(place, point, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            pid = forked(lambda: write(place))
        if (code := ended(pid)) not in (0, -signal.SIGKILL):
            yield f"the process ended with {code}"
    elif way == PAIR:
        pids = [forked(lambda: write(place)) for _ in range(2)]
        if (codes := [ended(pid) for pid in pids]) != [0, 0]:
            yield f"the two ended with {codes}"
        if files_in(place) != clean:
            yield "the two left something else than one alone"
    else:
        size = draw.randrange(max(map(len, clean.values())) + 1) if way == FULL_DISK else None
        yield from _broken(write, place, point, draw.choice(ERRORS), size, clean)
    yield from half_files(place, old, clean)
    try:
        write(place)
    except PerfOptError as error:
        yield f"the next call was refused: {error}"
    if files_in(place) != clean:
        yield "the next call did not write what it writes undisturbed"
    yield from left_over(place)


def _broken(
    write: Write,
    place: Path,
    point: Point,
    error: int | type[BaseException],
    size: int | None,
    clean: Mapping[str, bytes],
) -> Iterator[str]:
    """An error at a point, or a limit on the size of files; in this process."""
    said = error_name(error)
    try:
        with planned(place, point, partial(raise_planned, error if size is None else None)), file_limit(size):
            write(place)
    except PerfOptError as refusal:
        if not (refusal.what and refusal.why and refusal.fix):
            yield f"{said}: the refusal does not say what, why and what to do"
    except KeyboardInterrupt:
        if error is not KeyboardInterrupt:
            raise
    except Exception as wrong:  # noqa: BLE001  whatever else comes out is what is looked for
        where = traceback.extract_tb(wrong.__traceback__)[-1]
        yield f"{said}: {type(wrong).__name__} at {Path(where.filename).name}:{where.lineno}: {str(wrong)[:120]}"
    else:
        if files_in(place) != clean:
            yield f"{said}: it said nothing, and did not write everything"
    yield from left_over(place)


def forked(work: Callable[[], object]) -> int:
    """A child that does this alone; 1: it raised."""
    if (pid := os.fork()) != 0:
        return pid
    code = 1
    with suppress(BaseException):
        work()
        code = 0
    os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def files_in(place: Path) -> dict[str, bytes]:
    files = (file for file in place.rglob("*") if file.is_file() and PREFIX not in str(file.relative_to(place)))
    return {str(file.relative_to(place)): file.read_bytes() for file in sorted(files)}


def fill(place: Path, files: Mapping[str, bytes]) -> None:
    """The folder with these files alone."""
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)


def half_files(place: Path, old: Mapping[str, bytes], clean: Mapping[str, bytes]) -> Iterator[str]:
    for name, content in files_in(place).items():
        if content not in (old.get(name), clean.get(name)):
            yield f"{name} is half a file of {len(content)} bytes"


def left_over(place: Path) -> Iterator[str]:
    yield from (f"{path.name} was left" for path in place.rglob(f"{PREFIX}*"))
