"""What small measurements say about one machine: how long each kind of work takes there, at which size.

A calibration is a set of tables. A table belongs to one family of work and one dtype and holds a time for every
combination of the sizes along its axes, and with which power the work grows along each, so that a size beyond the last
one can be told by proportion. The tables are measured by `llm-perf-opt devices calibrate` and read by the calibrated
prediction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import write_whole

CALIBRATION_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one thing took over several tries: the median, and the tries at both ends."""

    median_s: float
    fastest_s: float
    slowest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """Times of one family of work in one dtype.

    `ticks` are the sizes along each of `axes`, ascending. `growth` is the power with which the work grows along each: 1
    for rows of a product, 2 for tokens that attend to each other, 0 for an axis that only shapes the work. `times`
    holds one entry per combination, the last axis running fastest.
    """

    family: str
    dtype: str
    axes: tuple[str, ...]
    ticks: tuple[tuple[int, ...], ...]
    growth: tuple[int, ...]
    times: tuple[Timing, ...]

    def __post_init__(self) -> None:
        if not len(self.axes) == len(self.ticks) == len(self.growth):
            raise ValueError(f"{self.family}, {self.dtype}: axes, ticks and growth differ in number")
        if math.prod(map(len, self.ticks)) != len(self.times):
            raise ValueError(f"{self.family}, {self.dtype}: {len(self.times)} times do not fill its axes")
        if any(list(ticks) != sorted(set(ticks)) or ticks[0] < 1 for ticks in self.ticks):
            raise ValueError(f"{self.family}, {self.dtype}: ticks must be positive and ascend")
        if any(not 0 < time.fastest_s <= time.median_s <= time.slowest_s < math.inf for time in self.times):
            raise ValueError(f"{self.family}, {self.dtype}: a time is not positive, or its ends are not in order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One machine under one set of libraries, with a fixed number of threads.

    `fresh_byte` is the time to touch one byte of memory that the system has just handed out, beyond that of writing it;
    None where memory is always kept, as CUDA's caching allocator does.
    """

    device: str  # as the machine reports it
    kind: str  # "cpu" | "cuda"
    threads: int
    memory_bytes: int
    library_versions: Mapping[str, str]
    tables: tuple[RateTable, ...]
    fresh_byte: Timing | None = None
    clock: str = "wall"  # "wall" | "cpu": what the times were read from
    is_smoke: bool = False  # only the smallest sizes were tried: what is told of larger ones means nothing
    schema_version: int = field(default=CALIBRATION_SCHEMA_VERSION)

    @property
    def title(self) -> str:
        """The machine and, of a processor, how much of it was used."""
        if self.kind != "cpu":
            return self.device
        return f"{self.device}, {self.threads} {'thread' if self.threads == 1 else 'threads'}"

    def table(self, family: str, dtype: str) -> RateTable | None:
        """The table of a family in that dtype, or None: not measured."""
        for table in self.tables:
            if table.family == family and table.dtype == dtype:
                return table
        return None


def write_calibration(calibration: Calibration, path: Path) -> None:
    """As JSON, whole or not at all."""
    write_whole(path, [(json.dumps(asdict(calibration), indent=1) + "\n").encode()])


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file; a file that is none, or of another schema, is refused with the reason."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _refusal(path, str(error)) from error
    if not isinstance(document, dict):
        raise _refusal(path, "it holds no object")
    if document.get("schema_version") != CALIBRATION_SCHEMA_VERSION:
        raise _refusal(
            path, f"its schema version is {document.get('schema_version')!r}, not {CALIBRATION_SCHEMA_VERSION}"
        )
    try:
        return _calibration(document)
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(path, f"{type(error).__name__}: {error}") from error


def _calibration(document: Mapping[str, Any]) -> Calibration:
    fresh = document["fresh_byte"]
    return Calibration(
        device=str(document["device"]),
        kind=str(document["kind"]),
        threads=int(document["threads"]),
        memory_bytes=int(document["memory_bytes"]),
        library_versions={str(name): str(version) for name, version in document["library_versions"].items()},
        tables=tuple(map(_table, document["tables"])),
        fresh_byte=None if fresh is None else _timing(fresh),
        clock=str(document["clock"]),
        is_smoke=bool(document["is_smoke"]),
    )


def _table(row: Mapping[str, Any]) -> RateTable:
    return RateTable(
        family=str(row["family"]),
        dtype=str(row["dtype"]),
        axes=tuple(map(str, row["axes"])),
        ticks=tuple(tuple(map(int, ticks)) for ticks in row["ticks"]),
        growth=tuple(map(int, row["growth"])),
        times=tuple(map(_timing, row["times"])),
    )


def _timing(row: Mapping[str, Any]) -> Timing:
    return Timing(median_s=float(row["median_s"]), fastest_s=float(row["fastest_s"]), slowest_s=float(row["slowest_s"]))


def _refusal(path: Path, why: str) -> PerfOptError:
    return PerfOptError(
        f"{path} is no calibration this version can read.",
        why=why,
        fix="measure again: llm-perf-opt devices calibrate --out calibration.json",
    )
