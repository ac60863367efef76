"""Measuring the machine that this runs on, and what the measurements say in short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, device_text
from llm_perf_opt.core.hardware.calibration import (
    Calibration,
    best_rates,
    largest_bandwidth,
    measured_device,
    points,
    write_calibration,
)
from llm_perf_opt.core.output_files import make_folder, write_whole
from llm_perf_opt.core.plugins import CALIBRATORS
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table
from llm_perf_opt.core.units import format_bytes_per_s, format_flops_per_s


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CalibrationAnswer(Answer):
    """The tables of times by family of work, and the device that they make; a smoke test tells no rates of a device."""

    calibration: Calibration
    device: Device | None
    files: tuple[Path, ...]

    @property
    def answer(self) -> tuple[str, ...]:
        """The best rates, in a line."""
        if self.calibration.is_smoke:
            return ("Only the smallest sizes were tried: these figures say nothing about the machine.",)
        rates = [f"{dtype} {format_flops_per_s(rate)}" for dtype, rate in best_rates(self.calibration).items()]
        bandwidth = largest_bandwidth(self.calibration)
        memory = "memory not known" if bandwidth is None else f"memory {format_bytes_per_s(bandwidth)}"
        return (f"{self.calibration.title}: {', '.join((*rates, memory))}.",)

    def report(self) -> Report:
        """The best rates, and how long the smallest piece of each family of work takes."""
        return Report(
            title=self.calibration.title,
            answer=self.answer,
            tables=(
                Table(
                    title="Rates",
                    columns=(
                        Column("of"),
                        Column("best measured", Kind.FLOPS_PER_S),
                        Column("bytes", Kind.BYTES_PER_S),
                    ),
                    rows=tuple(_rates(self.calibration)),
                ),
                Table(
                    title="Families of work",
                    columns=(
                        Column("family"),
                        Column("dtype"),
                        Column("sizes tried", Kind.COUNT),
                        Column("smallest", Kind.SECONDS),
                        Column("largest", Kind.SECONDS),
                        Column("usual spread", Kind.RATIO),
                    ),
                    rows=tuple(_families(self.calibration)),
                ),
            ),
            notes=tuple(_notes(self.calibration)),
        )


def calibrate(
    *,
    torch_device: str = "cpu",
    dtype: str = "bfloat16",
    threads: int | None = None,
    smoke: bool = False,
    out: str | Path | None = None,
    force: bool = False,
) -> CalibrationAnswer:
    """Measure how fast this machine is at each kind of work; `predict(calibration=...)` takes the result.

    `torch_device` is `cpu` or `cuda`. `smoke` tries the smallest sizes only. `out` is a JSON file; a TOML file with
    the device is written next to it. Without `force`, existing files are refused before anything is measured.
    """
    files = () if out is None else _reserve(Path(out), smoke=smoke, force=force)
    calibration = CALIBRATORS.get("torch")(device=torch_device, dtype=dtype, threads=threads, smoke=smoke)
    measured = None if smoke else measured_device(calibration)
    if files:
        write_calibration(calibration, files[0])
    if measured is not None and files:
        write_whole(files[1], [device_text(measured).encode()])
    return CalibrationAnswer(calibration=calibration, device=measured, files=files)


def _reserve(out: Path, *, smoke: bool, force: bool) -> tuple[Path, ...]:
    files = (out,) if smoke else (out, out.with_suffix(".toml"))
    for file in files:
        if file.exists() and not force:
            raise UsageError(
                f"{file} exists.", why="a result is never overwritten silently", fix="use --force or another --out"
            )
    make_folder(out.parent)
    return files


def _notes(calibration: Calibration) -> Iterator[Note]:
    if calibration.is_smoke:
        yield Note("Only the smallest sizes were tried: these figures say nothing about the machine.", Level.WARNING)
    yield Note("The usual spread is (slowest - fastest) / median of the tries of one size, in the median over sizes.")
    yield Note("Other work on the machine during the measurement makes it look slower than it is.")


def _rates(calibration: Calibration) -> Iterator[tuple[Cell, ...]]:
    for dtype, rate in best_rates(calibration).items():
        yield f"matmuls, {dtype}", rate, None
    yield "memory", None, largest_bandwidth(calibration)
    if calibration.fresh_byte is not None:
        yield "new memory from the system, without writing it", None, 1 / calibration.fresh_byte.median_s


def _families(calibration: Calibration) -> Iterator[tuple[Cell, ...]]:
    for table in calibration.tables:
        times = [time for _, time in points(table)]
        spreads = sorted((time.slowest_s - time.fastest_s) / time.median_s for time in times)
        medians = [time.median_s for time in times]
        yield table.family, table.dtype, len(times), min(medians), max(medians), spreads[len(spreads) // 2]
