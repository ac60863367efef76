"""Exports of Nsight Systems: tables as CSV or JSON, and the SQLite database; kernels with name and time, no ops.

The program writes lines of its own before a table, so a table begins where its heading does.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.reading import FileKind
from llm_perf_opt.core.recordings.recording import COPY, FILL, KERNEL, DeviceWork, Recording, busiest
from llm_perf_opt.core.work_limits import WorkBudget

SOURCE = "Nsight Systems"
GPU_TRACE_HEADING = ("Start (ns)", "Duration (ns)", "Name")  # nsys stats -r cuda_gpu_trace
NOT_KERNELS = "[CUDA "  # "[CUDA memcpy Host-to-Device]", "[CUDA memset]"
_FILLS = "[CUDA memset"
_DEVICE = "Device"  # "NVIDIA H100 80GB HBM3 (0)"
_LONGEST_FIELD = 2**20
_MOST_ROWS = 2**24

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_KERNELS_QUERY = f"SELECT start, end, demangledName, deviceId FROM {_KERNELS} LIMIT ?"
_NAMES_QUERY = f"SELECT id, value FROM StringIds WHERE id IN (SELECT demangledName FROM {_KERNELS})"
_COPIES_QUERY = "SELECT start, end, deviceId FROM CUPTI_ACTIVITY_KIND_{} LIMIT ?"
_STEPS_BETWEEN_CHECKS = 1_000_000  # instructions of SQLite's machine: some hundredths of a second
_OTHERS = {"MEMCPY": (COPY, "[CUDA memcpy]"), "MEMSET": (FILL, "[CUDA memset]")}


def table_rows(text: str, heading: Sequence[str]) -> Iterator[dict[str, str]]:
    """The rows of the first table with all these columns in its heading; a file without such a table is refused."""
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines) if set(heading) <= set(_cells(line))]
    if not starts:
        raise PerfOptError(
            "This file is not a table of Nsight that can be read.",
            why=f"no line holds the columns {', '.join(heading)}",
            fix="export it with the options that llm-perf-opt uses; other versions may name columns differently",
        )
    table = csv.DictReader(io.StringIO("\n".join(lines[starts[0] :])))
    return (row for row in table if any(row.values()))


def _cells(line: str) -> list[str]:
    return next(csv.reader([line]), []) if len(line) <= _LONGEST_FIELD else []


def read_csv_recording(raw: bytes, kind: FileKind) -> Recording:
    """The recording in `nsys stats --report cuda_gpu_trace --format csv`."""
    try:
        return _recording(table_rows(raw.decode("utf-8", errors="replace"), GPU_TRACE_HEADING), kind)
    except csv.Error as error:
        raise kind.refusal("is no table that can be read", str(error)[:300]) from None


def read_table_recording(raw: bytes, kind: FileKind) -> Recording:
    """The recording in `nsys stats --report cuda_gpu_trace --format json`: one object per row, by the same columns."""
    if raw.count(b",") >= kind.max_elements:
        raise kind.refusal("is too large", f"it holds more than {kind.max_elements:,} values")
    try:
        rows = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise kind.refusal("is not valid JSON", str(error)[:300]) from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise kind.refusal("is no table of Nsight Systems", "expected a list of objects, one per kernel")
    if rows and not set(GPU_TRACE_HEADING) <= rows[0].keys():
        found = ", ".join(map(str, list(rows[0])[:6]))
        raise kind.refusal(
            "is no table of Nsight Systems", f"its rows have no {', '.join(GPU_TRACE_HEADING)}; they have {found}"
        )
    return _recording(rows, kind)


def read_database_recording(path: Path, kind: FileKind) -> Recording:
    """The recording in the SQLite export of Nsight Systems (`nsys export --type sqlite`). It is opened read-only.

    A name that a million kernels share is read once. What is not a plain table may compute without end, and is refused.
    """
    try:
        with _opened(path) as database:
            _require_tables(database, kind)
            names: dict[Any, str] = {row: str(name) for row, name in database.execute(_NAMES_QUERY)}
            kernels = database.execute(_KERNELS_QUERY, (_MOST_ROWS,)).fetchall()
            devices = _device_names(database)
            others = [(table, row) for table in _OTHERS for row in _rows_of(database, table)]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise kind.refusal("is no database of Nsight Systems", str(error)[:300]) from None
    work = [
        (_database_work(start, end, names.get(name, ""), KERNEL, kind), device) for start, end, name, device in kernels
    ]
    for table, (start, end, device) in others:
        what, title = _OTHERS[table]
        work.append((_database_work(start, end, title, what, kind), device))
    return _busiest_recording(work, devices, kind)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Without the functions that a schema may call, and stopped at the limits of time and memory."""
    budget = WorkBudget()
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA cell_size_check = ON")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_FIELD)
        database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        database.set_progress_handler(lambda: budget.exceeded() is not None, _STEPS_BETWEEN_CHECKS)
        try:
            yield database
        except sqlite3.OperationalError:
            reached = budget.exceeded()
            if reached is None:
                raise
            raise reached from None


def _require_tables(database: sqlite3.Connection, kind: FileKind) -> None:
    wanted = (
        "StringIds",
        "TARGET_INFO_GPU",
        "TARGET_INFO_CUDA_DEVICE",
        _KERNELS,
        *(f"CUPTI_ACTIVITY_KIND_{name}" for name in _OTHERS),
    )
    marks = ", ".join("?" * len(wanted))
    query = f"SELECT name, type, sql FROM sqlite_master WHERE name COLLATE NOCASE IN ({marks})"
    for name, what, sql in database.execute(query, wanted).fetchall():
        computed = "SELECT count(*) FROM pragma_table_xinfo(?) WHERE hidden != 0"
        is_plain = what == "table" and str(sql).upper().startswith("CREATE TABLE")  # and not CREATE VIRTUAL TABLE
        if not is_plain or database.execute(computed, (name,)).fetchone()[0]:
            raise kind.refusal("is no database of Nsight Systems", f"{name} is not a plain table")


def _rows_of(database: sqlite3.Connection, table: str) -> list[Any]:
    wanted = f"CUPTI_ACTIVITY_KIND_{table}"
    row = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?", (wanted,)).fetchone()
    return database.execute(_COPIES_QUERY.format(table), (_MOST_ROWS,)).fetchall() if row else []


def _device_names(database: sqlite3.Connection) -> dict[Any, str]:
    """Kernels carry the number that CUDA gives a device, which differs from the GPU's own where not all are visible."""
    try:
        gpus = {row: str(name) for row, name in database.execute("SELECT id, name FROM TARGET_INFO_GPU LIMIT 64")}
    except sqlite3.Error:  # an older export without the table: the device is then unknown
        return {}
    try:
        numbers = database.execute("SELECT cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE LIMIT 4096").fetchall()
    except sqlite3.Error:
        return gpus
    named: dict[Any, set[str]] = {}
    for number, gpu in numbers:
        named.setdefault(number, set()).add(gpus.get(gpu, ""))
    return {number: next(iter(found)) for number, found in named.items() if len(found) == 1} if named else gpus


def _database_work(start: Any, end: Any, name: str, what: str, kind: FileKind) -> DeviceWork:
    if type(start) is not int or type(end) is not int or end < start:
        raise kind.malformed("a row of kernels", "a start and a later end in nanoseconds", [start, end])
    return DeviceWork(name=name, kind=what, start_ns=start, duration_ns=end - start)


def _recording(rows: Iterable[Mapping[str, Any]], kind: FileKind) -> Recording:
    work: list[tuple[DeviceWork, Any]] = []
    for row in rows:
        name, device = str(row.get("Name") or ""), str(row.get(_DEVICE) or "")
        what = KERNEL if not name.startswith(NOT_KERNELS) else FILL if name.startswith(_FILLS) else COPY
        start_ns, duration_ns = (_whole(row.get(column), column, kind) for column in GPU_TRACE_HEADING[:2])
        work.append((DeviceWork(name=name, kind=what, start_ns=start_ns, duration_ns=duration_ns), device))
        if len(work) > _MOST_ROWS:
            raise kind.refusal("is too large", f"it holds more than {_MOST_ROWS:,} rows")
    return _busiest_recording(work, {device: device.rpartition(" (")[0] or device for _, device in work}, kind)


def _whole(value: Any, column: str, kind: FileKind) -> int:
    text = str(value or "").replace(",", "")
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise kind.malformed(column, "a whole number of nanoseconds", value)
    return int(text)


def _busiest_recording(work: Sequence[tuple[DeviceWork, Any]], names: Mapping[Any, str], kind: FileKind) -> Recording:
    spent: Counter[Any] = Counter()
    for kernel, device in work:
        spent[device] += kernel.duration_ns
    device, others = busiest(spent)
    chosen = [kernel for kernel, on in work if on == device]
    if not chosen:
        raise kind.refusal("holds no kernel", "the table is empty")
    return Recording(
        source=SOURCE,
        device_name=names.get(device) or None,
        work=tuple(sorted(chosen, key=lambda kernel: kernel.start_ns)),
        other_devices=others,
    )
