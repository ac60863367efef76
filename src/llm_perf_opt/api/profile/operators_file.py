"""`operators.csv`: what one pass under torch's profiler saw, and the same read back by a run that is resumed."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from llm_perf_opt.api.profile.request import ProfilerChoice
from llm_perf_opt.core.measurement import OperatorTime

CHROME_TRACE = "chrome-trace.json"
OPERATORS = "operators.csv"
_COLUMNS = ("stage", "operator", "calls", "self_ns", "total_ns", "device_ns")


def operator_columns(profiler: ProfilerChoice) -> tuple[str, ...]:
    """The columns of the file: more where the profiler was asked to record more."""
    recorded = {
        "module": profiler.with_modules,
        "source": profiler.with_stack,
        "self_allocated_bytes": profiler.profile_memory,
    }
    return (*_COLUMNS, *(name for name, is_on in recorded.items() if is_on))


def operators_text(operators: Sequence[OperatorTime], columns: Sequence[str] = _COLUMNS) -> str:
    """One line per stage and operator, module and source line; what is unknown is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(asdict(one) for one in operators)
    return text.getvalue()


def kept_operators(folder: Path, profiler: ProfilerChoice) -> tuple[OperatorTime, ...] | None:
    """Those that an earlier run left with the same options of the profiler; None where the pass is still to be made."""
    file = folder / OPERATORS
    if not file.is_file() or not (folder / CHROME_TRACE).is_file():
        return None
    text = file.read_text("utf-8")
    heading = tuple(next(csv.reader(io.StringIO(text)), ()))
    return read_operators(text) if heading == operator_columns(profiler) else None


def read_operators(text: str) -> tuple[OperatorTime, ...]:
    """Back from `operators_text`."""
    return tuple(
        OperatorTime(
            stage=row["stage"],
            operator=row["operator"],
            calls=int(row["calls"]),
            self_ns=int(row["self_ns"]),
            total_ns=int(row["total_ns"]),
            device_ns=_number(row["device_ns"]),
            module=row.get("module") or None,
            source=row.get("source") or None,
            self_allocated_bytes=_number(row.get("self_allocated_bytes")),
        )
        for row in csv.DictReader(io.StringIO(text))
    )


def _number(text: str | None) -> int | None:
    return int(text) if text else None
