"""Small measurements of one machine: how long each kind of work takes there, at which size.

A calibration is a set of tables. A table belongs to one family of work and one dtype and holds a time for every
combination of the sizes along its axes, and with which power the work grows along each, so that a size beyond the last
one follows by proportion. The tables are measured by `llm-perf-opt devices calibrate` and read by the calibrated
prediction. As a device, the best measured rates stand in for peaks that nobody publishes.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE, Device
from llm_perf_opt.core.output_files import sealed_text, write_whole
from llm_perf_opt.core.reading import FileKind, read_json

CALIBRATION_SCHEMA_VERSION = 1
CALIBRATION_FILE = FileKind(
    name="calibration file",
    fix="measure again: llm-perf-opt devices calibrate --out calibration.json",
    schema_version=CALIBRATION_SCHEMA_VERSION,
    is_sealed=True,
    has_every_key=True,
)
_SHORTEST_S, _LONGEST_S = 1e-15, 86_400.0
_LARGEST_SIZE, _LARGEST_MEMORY, _MOST_THREADS = 2**48, 2**56, 2**20
_POWERS = frozenset(range(4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one thing took over several tries: the median, and the tries at both ends."""

    median_s: float
    fastest_s: float
    slowest_s: float

    @property
    def is_sound(self) -> bool:
        """Positive, in order, and of this world: from a femtosecond to a day."""
        return _SHORTEST_S <= self.fastest_s <= self.median_s <= self.slowest_s <= _LONGEST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTable:
    """Times of one family of work in one dtype.

    `ticks` are the sizes along each of `axes`, ascending. `growth` is the power with which the work grows along each: 1
    for rows of a matmul, 2 for tokens that attend to each other, 0 for an axis that only shapes the work. `times`
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
        if any(not ticks or list(ticks) != sorted(set(ticks)) or ticks[0] < 1 for ticks in self.ticks):
            raise ValueError(f"{self.family}, {self.dtype}: ticks must be positive and ascend")
        if any(ticks[-1] > _LARGEST_SIZE for ticks in self.ticks) or not set(self.growth) <= _POWERS:
            raise ValueError(f"{self.family}, {self.dtype}: a size or a power of growth is out of range")
        if any(not time.is_sound for time in self.times):
            raise ValueError(f"{self.family}, {self.dtype}: a time is not positive, or its ends are not in order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One machine under one set of libraries, with a fixed number of threads.

    `fresh_byte` is the extra time to touch one byte of memory that the system has just handed out, beyond writing it;
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
    is_smoke: bool = False  # only the smallest sizes were tried: times of larger ones mean nothing
    schema_version: int = field(default=CALIBRATION_SCHEMA_VERSION)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= _MOST_THREADS or not 1 <= self.memory_bytes < _LARGEST_MEMORY:
            raise ValueError("a machine with threads and memory, in a number that there can be")
        if self.fresh_byte is not None and not self.fresh_byte.is_sound:
            raise ValueError("a time of fresh memory that is positive, its ends in order")

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
    """As JSON with a seal, whole or not at all."""
    write_whole(path, [sealed_text(json.dumps(asdict(calibration), indent=1)).encode()])


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file; a file that is none, or of another schema, is refused with the reason."""
    return read_json(path, Calibration, CALIBRATION_FILE)


_MATMULS = ("matmul", "wide_matmul", "narrow_matmul", "batched_matmul")
_BYTES_PER_VALUE = {"bfloat16": 2, "float16": 2, "float32": 4}


def measured_device(calibration: Calibration) -> Device:
    """The device of a calibration, with the best matrix rates and the best bandwidth in it."""
    rates = best_rates(calibration)
    bandwidth = largest_bandwidth(calibration)
    if not rates or bandwidth is None:
        raise PerfOptError(
            "The calibration has no matrix rate or no bandwidth.",
            why="its tables of matmuls or copies are missing",
            fix="measure again: llm-perf-opt devices calibrate",
        )
    device = Device(
        id=device_id(calibration),
        name=f"{calibration.title}, measured",
        vendor="measured",
        arch=calibration.kind,
        peak_flops_per_s={PEAKS_OF_DTYPE[dtype][0]: int(rate) for dtype, rate in rates.items()},
        bandwidth_bytes_per_s=int(bandwidth),
        memory_bytes=calibration.memory_bytes,
        is_measured=True,
        threads=calibration.threads if calibration.kind == "cpu" else None,
        reported_names=(calibration.device,),
        sources=("llm-perf-opt devices calibrate",),
        notes="Best rates of a calibration, not figures of a data sheet.",
    )
    sums = calibration.table("arithmetic", "float32")
    return device if sums is None else _with_overheads(device, sums.times[0])


def _with_overheads(device: Device, smallest: Timing) -> Device:
    """The smallest sum stands for an op without work."""
    return replace(
        device,
        launch_overhead_ns=round(smallest.median_s * 1e9),
        launch_overhead_fastest_ns=round(smallest.fastest_s * 1e9),
        launch_overhead_slowest_ns=round(smallest.slowest_s * 1e9),
    )


def device_id(calibration: Calibration) -> str:
    """A name for files and options, made of what the machine reports."""
    words = re.sub(r"[^a-z0-9]+", "-", calibration.device.lower()).strip("-")
    return f"{words}-{calibration.threads}-threads" if calibration.kind == "cpu" else words


def best_rates(calibration: Calibration) -> dict[str, float]:
    """By dtype, the most FLOP/s that any measured matmul reached."""
    best: dict[str, float] = {}
    for table in calibration.tables:
        if table.family in _MATMULS and table.dtype in PEAKS_OF_DTYPE:
            rate = max(2 * math.prod(sizes.values()) / time.median_s for sizes, time in points(table))
            best[table.dtype] = max(rate, best.get(table.dtype, 0.0))
    return best


def largest_bandwidth(calibration: Calibration) -> float | None:
    """Bytes per second of a copy of the largest size, or of reading the largest weight for a single row."""
    problems = []
    for table in calibration.tables:
        size = _BYTES_PER_VALUE.get(table.dtype, 0)
        if table.family == "copy" and table.axes == ("elements",):
            *_, (sizes, time) = points(table)
            problems.append(2 * sizes["elements"] * size / time.median_s)
        elif table.family == "wide_matmul" and {"rows", "columns", "depth"} <= set(table.axes):
            problems += [
                sizes["columns"] * sizes["depth"] * size / time.median_s
                for sizes, time in points(table)
                if sizes["rows"] == 1
            ]
    return max(problems, default=None)


def points(table: RateTable) -> Iterator[tuple[Mapping[str, int], Timing]]:
    """Every combination of sizes with its time."""
    for sizes, time in zip(itertools.product(*table.ticks), table.times, strict=True):
        yield dict(zip(table.axes, sizes, strict=True)), time
