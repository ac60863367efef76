"""The JSON that `llm-perf-opt join` writes, as a measurement: the kernel time of each stage of one phase."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from llm_perf_opt.analyses.measured.measurement import MEASURED_FILE, MeasuredRun, Measurement, Quantity, run_of
from llm_perf_opt.core.reading import as_record, decode_json

SOURCE = "llm-perf-opt join"
_STAGES = "Kernel time by stage"
_TITLE = re.compile(r"(.{1,200}), ([a-z_]{1,40}): recorded kernels on the traced ops")
_FORWARDS = re.compile(r", in ([0-9,]{1,12}) forwards?\b")
_WHAT = f"the report of llm-perf-opt join, with its table {_STAGES!r}"


class TableRow(Struct, frozen=True, kw_only=True):
    """A table of the report."""

    title: str
    rows: tuple[dict[str, Any], ...] = ()


class JoinReport(Struct, frozen=True, kw_only=True):
    """What is read of the report."""

    title: str
    tables: tuple[TableRow, ...]


class StageTimeRow(Struct, frozen=True, kw_only=True):
    """A stage and the time of its kernels, over all forwards."""

    stage: str
    kernel_time_seconds: Annotated[float, Meta(ge=0)]


def read_joined_report(raw: bytes, file: str) -> tuple[MeasuredRun, ...]:
    """The one run of the report."""
    report = decode_json(raw, JoinReport, MEASURED_FILE)
    named = _TITLE.fullmatch(report.title)
    rows = next((table.rows for table in report.tables if table.title == _STAGES), ())
    forwards = _forwards(report.tables)
    if named is None or not rows or forwards is None:
        raise MEASURED_FILE.malformed("tables", _WHAT, report.title)
    kept = ({name: row.get(name) for name in StageTimeRow.__struct_fields__} for row in rows)
    stages = [as_record(row, StageTimeRow, MEASURED_FILE) for row in kept]
    times = [_time(stage, forwards) for stage in stages if stage.kernel_time_seconds > 0]
    return (run_of(times, source=SOURCE, file=file, model=named[1], phase=named[2]),)


def _time(stage: StageTimeRow, forwards: int) -> Measurement:
    try:
        return Measurement(
            quantity=Quantity.STAGE,
            stage=stage.stage[:200],
            samples_s=(stage.kernel_time_seconds / forwards,),
            statistic=f"kernels, mean of {forwards:,} forwards" if forwards > 1 else "kernels of one forward",
            is_device_time=True,
        )
    except ValueError as error:
        raise MEASURED_FILE.refusal("holds a value that cannot be", str(error)) from None


def _forwards(tables: Sequence[TableRow]) -> int | None:
    """How many forwards the times are of, which stands in the answer."""
    rows = (row for table in tables if table.title == "Answer" for row in table.rows)
    text = next((str(row.get("answer", "")) for row in rows if row.get("what") == "attributed"), "")
    found = _FORWARDS.search(text)
    count = int(found[1].replace(",", "") or 0) if found else 0
    return count if count else None
