"""The folder of one run: one writer at a time, files whole or not at all, finished pages, and which run it is.

A run is known by its request, which `request.json` keeps. Two requests that differ only in what the timed passes do not
depend on (see `NOT_MEASURED`) are the same run: the pages stay, and what is made of them is made afresh.
`operators.csv` is what one pass under the profiler of torch saw; `read_sweep` reads the folders of many runs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import OperatorTime, PageMeasurement
from llm_perf_opt.core.output_files import SUFFIX, make_folder, remove_left_behind, sealed_text, write_whole
from llm_perf_opt.core.plain_text import visible_lines
from llm_perf_opt.core.reading import FileKind, naming_file, read_bytes, read_json
from llm_perf_opt.core.report import Cell, Column, Kind, Report, Table, counted
from llm_perf_opt.core.run_lock import LOCK_FILE, locked_folder
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.measurements.profile.metrics_file import read_metrics
from llm_perf_opt.measurements.profile.request import NOT_MEASURED, ProfilerChoice, ProfileRequest, read_request

log = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"  # the request as a person writes it
REQUEST_FILE = "request.json"  # which run this is
FAILURE_FILE = "failure.txt"  # why a run of a sweep ended early
DIGEST_SUFFIX = ".sha256"
ENVIRONMENT_FILE = "env.json"
METRICS_FILE = "metrics.json"  # the last to be written: a run that has it is finished
PAGES = "pages"
CHROME_TRACE = "chrome-trace.json"
OPERATORS = "operators.csv"
JOINED = (METRICS_FILE, "report.md", "report.html", "static_compute.json", "static_compute.md")  # made afresh
MEASURED = (
    ENVIRONMENT_FILE,
    FAILURE_FILE,
    OPERATORS,
    OPERATORS + DIGEST_SUFFIX,
    CHROME_TRACE,
    "kernels.json",
    "nsys.nsys-rep",
    "nsys.sqlite",  # which `nsys stats` leaves next to its report
    "ncu.csv",
)

_PAGE = FileKind(name="measurement of a page", fix="delete it, and its page is measured again", is_sealed=True)
_ENVIRONMENT = FileKind(
    name="environment of a run", fix="choose another run.folder, or add --force", max_bytes=2**20, is_sealed=True
)
RUN_TEXT = FileKind(name="file of a run", fix="delete it, and it is made again")

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_OPERATOR_COLUMNS = ("stage", "operator", "calls", "self_ns", "total_ns", "device_ns")

_FAILURE = FileKind(name="reason why a run failed", fix="run it again", max_bytes=2**20)
_SWEEP_COLUMNS = (
    Column("run"),
    Column("model"),
    Column("mode"),
    Column("new tokens", Kind.COUNT),
    Column("page", Kind.SECONDS),
    Column("first token", Kind.SECONDS),
    Column("decode step", Kind.SECONDS),
    Column("MFU", Kind.RATIO),
)


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


class RunFolder:
    """A folder that this process alone writes to, until `open_run_folder` ends."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_text(self, name: str, text: str) -> Path:
        """One file, whole."""
        write_whole(self.path / name, [text.encode()])
        return self.path / name

    def write_json(self, name: str, document: Any) -> Path:
        """One JSON file, whole, an object with a seal; what is no finite number is refused."""
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        return self.write_text(name, sealed_text(text) if isinstance(document, dict) else text + "\n")

    def write_with_digest(self, name: str, text: str) -> Path:
        """A file that has no place for a seal, and next to it its digest as `sha256sum --check` takes it."""
        self.write_text(name + DIGEST_SUFFIX, f"{_digest(text.encode())}  {name}\n")
        return self.write_text(name, text)

    def text_with_digest(self, name: str) -> str | None:
        """The text as `write_with_digest` left it; None where it is not there, or not as it was left."""
        file, digest = self.path / name, self.path / (name + DIGEST_SUFFIX)
        if not file.is_file() or not digest.is_file():
            return None
        raw = read_bytes(file, RUN_TEXT)
        if read_bytes(digest, RUN_TEXT) == f"{_digest(raw)}  {name}\n".encode():
            try:
                return raw.decode()
            except UnicodeDecodeError as error:
                raise RUN_TEXT.error(f"{file} is no text.", why=str(error), fix=RUN_TEXT.fix) from None
        log.warning("%s was changed after it was written: it is made again", file)
        return None

    def keep_environment(self, environment: Any) -> None:
        """`env.json`; pages that were measured elsewhere, or with other settings, are no part of this run."""
        file = self.path / ENVIRONMENT_FILE
        if file.is_file() and any(self._pages()) and read_json(file, Any, _ENVIRONMENT) != environment:
            raise PerfOptError(
                f"{self.path} holds pages that were measured in another environment.",
                why=f"{file} differs from this machine, its libraries or its settings",
                fix="choose another run.folder, or add --force to measure all pages here",
            )
        self.write_json(ENVIRONMENT_FILE, environment)

    def _pages(self) -> Iterator[Path]:
        return (file for file in (self.path / PAGES).glob("*.json") if file.stem.isdigit())

    def clear(self) -> None:
        """Delete what a run writes and nothing else; `request.json` stays: it says that the folder is a run's."""
        for name in (*JOINED, *MEASURED):  # the metrics first: without its pages a run is not finished
            (self.path / name).unlink(missing_ok=True)
        for page in list(self._pages()):
            page.unlink()
        if (self.path / PAGES).is_dir() and not any((self.path / PAGES).iterdir()):
            (self.path / PAGES).rmdir()

    def keep_page(self, index: int, page: PageMeasurement) -> None:
        """A finished page, which a resumed run does not measure again."""
        make_folder(self.path / PAGES)
        self.write_json(f"{PAGES}/{index:05d}.json", page.to_json())

    def finished_page(self, index: int, image: str | None) -> PageMeasurement | None:
        """The page as it was measured before, or None; another image in its place is another page."""
        file = self.path / PAGES / f"{index:05d}.json"
        if not file.is_file():
            return None
        page = read_json(file, PageMeasurement, _PAGE)
        return page if page.image == image else None


@contextmanager
def open_run_folder(path: Path, request: ProfileRequest, config_text: str, *, force: bool) -> Iterator[RunFolder]:
    """Take the folder for one run with this request; what an earlier one measured with the same is kept.

    The lock is the operating system's, so it ends with the process however that ends. A folder of another run is
    refused, unless `force` clears it; a folder of anything else is refused always.
    """
    make_folder(path)
    _require_ours(path)
    with locked_folder(path, fix="wait for it, or choose another run.folder"):
        remove_left_behind(path / PAGES)  # what a run wrote when it was killed
        folder = RunFolder(path)
        if force:
            folder.clear()
        else:
            _require_same_run(path, request)
        folder.write_json(REQUEST_FILE, asdict(request))  # the first: a folder that has it is a run's
        folder.write_text(CONFIG_FILE, config_text)
        yield folder


def _require_ours(path: Path) -> None:
    """Before anything is written to it: a folder with a run, or with nothing but what a run leaves that never began."""
    if (path / REQUEST_FILE).is_file():
        read_request(path / REQUEST_FILE)
    elif any(file.name not in (LOCK_FILE, FAILURE_FILE) for file in path.iterdir() if file.suffix != SUFFIX):
        raise PerfOptError(
            f"{path} is not empty and holds no run.",
            why=f"there is no {REQUEST_FILE} of a profile run in it, so its files are not ours",
            fix="choose another run.folder",
        )


def _require_same_run(path: Path, request: ProfileRequest) -> None:
    """Pages of two runs must not mix; what was only made of them goes with the request that it was made by."""
    if not (path / REQUEST_FILE).is_file():
        return
    stored = read_request(path / REQUEST_FILE)
    if measured_part(stored) != measured_part(request):
        raise PerfOptError(
            f"{path} holds a run with another configuration.",
            why=f"{path / REQUEST_FILE} differs from what was asked for, and results of two runs must not mix",
            fix="choose another run.folder, or add --force to clear this one",
        )
    if stored != request:
        for name in JOINED:
            (path / name).unlink(missing_ok=True)


def measured_part(record: Any) -> Any:
    """The values of a request that the timed passes depend on."""
    if not is_dataclass(record):
        return record
    return {
        field.name: measured_part(getattr(record, field.name))
        for field in fields(record)
        if not field.metadata.items() >= NOT_MEASURED.items()
    }


def operator_columns(profiler: ProfilerChoice) -> tuple[str, ...]:
    """The columns of the file: more where the profiler was asked to record more."""
    recorded = {
        "module": profiler.with_modules,
        "source": profiler.with_stack,
        "self_allocated_bytes": profiler.profile_memory,
    }
    return (*_OPERATOR_COLUMNS, *(name for name, is_on in recorded.items() if is_on))


def operators_text(operators: Sequence[OperatorTime], columns: Sequence[str] = _OPERATOR_COLUMNS) -> str:
    """One line per stage and operator, module and source line; what is unknown is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(operator) for operator in operators)
    return text.getvalue()


def kept_operators(folder: RunFolder, profiler: ProfilerChoice) -> tuple[OperatorTime, ...] | None:
    """Those that an earlier run left with the same options of the profiler; None where the pass is still to be made."""
    text = folder.text_with_digest(OPERATORS)
    if text is None or not (folder.path / CHROME_TRACE).is_file():
        return None
    heading = tuple(text.partition("\n")[0].split(","))
    if heading != operator_columns(profiler):
        return None
    with naming_file(folder.path / OPERATORS):
        return read_operators(text)


def read_operators(text: str) -> tuple[OperatorTime, ...]:
    """Back from `operators_text`; a table that it could not have made is refused."""
    try:
        return tuple(_operator(row) for row in csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise RUN_TEXT.refusal("is no table of operators", str(error)[:300]) from None


def _operator(row: Mapping[str | None, str | None]) -> OperatorTime:
    if None in row or None in row.values():
        raise RUN_TEXT.refusal("is no table of operators", "a line has more or fewer fields than the heading")
    return OperatorTime(
        stage=row["stage"] or "",
        operator=row["operator"] or "",
        calls=_whole(row, "calls"),
        self_ns=_whole(row, "self_ns"),
        total_ns=_whole(row, "total_ns"),
        device_ns=_whole(row, "device_ns") if row["device_ns"] else None,
        module=row.get("module") or None,
        source=row.get("source") or None,
        self_allocated_bytes=_whole(row, "self_allocated_bytes") if row.get("self_allocated_bytes") else None,
    )


def _whole(row: Mapping[str | None, str | None], column: str) -> int:
    """A number of 64 bits; an operator may free more than it allocates."""
    text = row[column] or ""
    if not _WHOLE.fullmatch(text):
        raise RUN_TEXT.malformed(column, "a whole number", text)
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The folders of all runs, one row for each, and why some have no figures."""

    runs: tuple[Path, ...]
    report: Report
    failures: tuple[str, ...]


@contextmanager
def failure_kept(run: Path, overrides: Sequence[str]) -> Iterator[None]:
    """A run that fails leaves the reason in its folder, and the others go on."""
    failure = run / FAILURE_FILE
    failure.unlink(missing_ok=True)
    try:
        yield
    except PerfOptError as error:
        write_whole(failure, [visible_lines(f"{' '.join(overrides)}\n{error}\n").encode()])


def read_sweep(folder: Path, runs: Sequence[Path]) -> Sweep:
    """The folders of the runs that one command started in `folder`; other files there are ignored."""
    table = Table(title="Runs", columns=_SWEEP_COLUMNS, rows=tuple(map(_row, runs)))
    return Sweep(
        runs=tuple(runs),
        report=Report(title=f"{len(runs)} runs in {folder}", answer=(_answer(table),), tables=(table,)),
        failures=tuple(reason for run in runs if (reason := _failure(run)) is not None),
    )


def _answer(table: Table) -> str:
    """How many have figures, and the fastest."""
    place = [column.name for column in table.columns].index("page")
    timed = {str(row[0]): row[place] for row in table.rows if isinstance(row[place], float)}
    summary = f"{counted(len(table.rows), 'run')}, {format_count(len(table.rows) - len(timed))} without figures"
    if not timed:
        return f"{summary}."
    fastest = min(timed, key=lambda name: float(timed[name] or 0.0))
    return f"{summary}; fastest {fastest}, {format_seconds(float(timed[fastest] or 0.0))} a page."


def _failure(run: Path) -> str | None:
    """Why there are no figures of this run; None where there are."""
    if (run / FAILURE_FILE).is_file():
        return read_bytes(run / FAILURE_FILE, _FAILURE).decode("utf-8", "replace").strip()
    return None if (run / METRICS_FILE).is_file() else f"{run} has no {METRICS_FILE}"


def _row(run: Path) -> tuple[Cell, ...]:
    if _failure(run) is not None:
        return (run.name, "failed", *(None,) * (len(_SWEEP_COLUMNS) - 2))
    metrics = read_metrics(run / METRICS_FILE)
    workload, step = metrics.request.get("workload", {}), metrics.decode_step
    return (
        run.name,
        metrics.model,
        workload.get("mode"),
        workload.get("max_new_tokens"),
        metrics.wall.median_ns * 1e-9,
        None if metrics.first_token is None else metrics.first_token.median_ns * 1e-9,
        None if step is None else step.median_ns * 1e-9,
        metrics.model_figure.mfu,
    )
