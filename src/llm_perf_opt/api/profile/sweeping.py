"""Many runs of one command, read back from the folders that they left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.api.profile.run_folder import FAILURE_FILE, METRICS_FILE
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.plain_text import visible_lines
from llm_perf_opt.core.reading import FileKind, read_bytes
from llm_perf_opt.core.report import Cell, Column, Kind, Report, Table, counted
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.measurements.profile.metrics_file import read_metrics

_FAILURE = FileKind(name="reason why a run failed", fix="run it again", max_bytes=2**20)
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
    """The folders of the runs that one command started in `folder`; what else lies there is not looked at."""
    table = Table(title="Runs", columns=_COLUMNS, rows=tuple(map(_row, runs)))
    return Sweep(
        runs=tuple(runs),
        report=Report(title=f"{len(runs)} runs in {folder}", answer=(_answer(table),), tables=(table,)),
        failures=tuple(reason for run in runs if (reason := _failure(run)) is not None),
    )


def _answer(table: Table) -> str:
    """How many have figures, and the fastest."""
    place = [column.name for column in table.columns].index("page")
    timed = {str(row[0]): row[place] for row in table.rows if isinstance(row[place], float)}
    told = f"{counted(len(table.rows), 'run')}, {format_count(len(table.rows) - len(timed))} without figures"
    if not timed:
        return f"{told}."
    fastest = min(timed, key=lambda name: float(timed[name] or 0.0))
    return f"{told}; fastest {fastest}, {format_seconds(float(timed[fastest] or 0.0))} a page."


def _failure(run: Path) -> str | None:
    """Why there are no figures of this run; None where there are."""
    if (run / FAILURE_FILE).is_file():
        return read_bytes(run / FAILURE_FILE, _FAILURE).decode("utf-8", "replace").strip()
    return None if (run / METRICS_FILE).is_file() else f"{run} has no {METRICS_FILE}"


def _row(run: Path) -> tuple[Cell, ...]:
    if _failure(run) is not None:
        return (run.name, "failed", *(None,) * (len(_COLUMNS) - 2))
    found = read_metrics(run / METRICS_FILE)
    workload, step = found.request.get("workload", {}), found.decode_step
    return (
        run.name,
        found.model,
        workload.get("mode"),
        workload.get("max_new_tokens"),
        found.wall.median_ns * 1e-9,
        None if found.first_token is None else found.first_token.median_ns * 1e-9,
        None if step is None else step.median_ns * 1e-9,
        found.model_figure.mfu,
    )
