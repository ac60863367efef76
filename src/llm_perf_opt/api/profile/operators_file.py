"""`operators.csv`: what one pass under torch's profiler saw, and the same read back by a run that is resumed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from llm_perf_opt.api.profile.request import ProfilerChoice
from llm_perf_opt.api.profile.run_folder import RUN_TEXT, RunFolder
from llm_perf_opt.core.measurement import OperatorTime
from llm_perf_opt.core.reading import naming_file

CHROME_TRACE = "chrome-trace.json"
OPERATORS = "operators.csv"
_WHOLE = re.compile(r"-?[0-9]{1,18}")
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
