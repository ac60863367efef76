"""Measuring the machine at hand, and what the measurements say in short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import device_text
from llm_perf_opt.core.hardware.calibration import Calibration, write_calibration
from llm_perf_opt.core.hardware.measured_device import best_rates, largest_bandwidth, measured_device, points
from llm_perf_opt.core.output_files import make_folder, write_whole
from llm_perf_opt.core.protocols import CALIBRATORS
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    """Everything `devices calibrate` can be asked for; the device of `--devices` is written beside `out`.

    With `smoke` none is written: what the smallest sizes tell are no rates of the machine.
    """

    out: Path
    device: str = "cpu"
    dtype: str = "bfloat16"
    threads: int | None = None
    smoke: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRun:
    """The report, the files that were written, and the id under which the device is found in the second, if any."""

    report: Report
    files: tuple[Path, ...]
    device_id: str | None


def run_calibrate(request: CalibrateRequest) -> CalibrateRun:
    """Measure, then write the files; existing ones are refused before anything is measured."""
    device_file = None if request.smoke else request.out.with_suffix(".toml")
    files = (request.out,) if device_file is None else (request.out, device_file)
    for file in files:
        if file.exists() and not request.force:
            raise UsageError(
                f"{file} exists.", why="nothing is overwritten unasked", fix="use --force or another --out"
            )
    make_folder(request.out.parent)
    calibration = CALIBRATORS.get("torch")(
        device=request.device, dtype=request.dtype, threads=request.threads, smoke=request.smoke
    )
    write_calibration(calibration, request.out)
    device_id = None if device_file is None else _write_device(calibration, device_file)
    return CalibrateRun(report=calibration_report(calibration), files=files, device_id=device_id)


def _write_device(calibration: Calibration, file: Path) -> str:
    device = measured_device(calibration)
    write_whole(file, [device_text(device).encode()])
    return device.id


def calibration_report(calibration: Calibration) -> Report:
    """The rates a person asks for first, and how long the smallest piece of each family of work takes."""
    return Report(
        title=calibration.title,
        tables=(
            Table(
                title="Rates",
                columns=(Column("of"), Column("best measured", Kind.FLOPS_PER_S), Column("bytes", Kind.BYTES_PER_S)),
                rows=tuple(_rates(calibration)),
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
                rows=tuple(_families(calibration)),
            ),
        ),
        notes=tuple(_notes(calibration)),
    )


def _notes(calibration: Calibration) -> Iterator[Note]:
    if calibration.is_smoke:
        yield Note("Only the smallest sizes were tried: these figures mean nothing.", Level.WARNING)
    yield Note("The usual spread is the median, over sizes, of slowest less fastest try over the median try.")
    yield Note("A machine that does other work at the same time measures itself too slow.")


def _rates(calibration: Calibration) -> Iterator[tuple[Cell, ...]]:
    for dtype, rate in best_rates(calibration).items():
        yield f"matrix products, {dtype}", rate, None
    yield "memory", None, largest_bandwidth(calibration)
    if calibration.fresh_byte is not None:
        yield "memory fresh from the system, beyond writing it", None, 1 / calibration.fresh_byte.median_s


def _families(calibration: Calibration) -> Iterator[tuple[Cell, ...]]:
    for table in calibration.tables:
        times = [time for _, time in points(table)]
        spreads = sorted((time.slowest_s - time.fastest_s) / time.median_s for time in times)
        medians = [time.median_s for time in times]
        yield table.family, table.dtype, len(times), min(medians), max(medians), spreads[len(spreads) // 2]
