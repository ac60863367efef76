"""Nsight around a process of ours: its command line, its CSV exports, and each kernel put into its stage.

Both programs write lines of their own before the table, so a table begins where its heading does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import MeasuredKernel
from llm_perf_opt.core.recordings.nsight_export import GPU_TRACE_HEADING, NOT_KERNELS, table_rows
from llm_perf_opt.harness.stage_ranges import PASS_RANGE, STAGE_PREFIX

RANGES_HEADING = ("Name", "Projected Start (ns)", "Projected Duration (ns)")  # nsys stats -r nvtx_gpu_proj_trace
NCU_HEADING = ("ID", "Kernel Name")  # ncu --csv --page raw
_PUSHED = "Push/Pop_Range"
_DURATION = "gpu__time_duration.sum"
_NS_PER_UNIT = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_NS_PER_UNIT |= {"nsecond": 1, "usecond": 10**3, "msecond": 10**6, "second": 10**9}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedRange:
    """A stage as the GPU saw it: from its first kernel to the end of its last."""

    stage: str
    start_ns: int
    end_ns: int


def read_ranges(text: str) -> tuple[ProjectedRange, ...]:
    """The stages among the ranges of `nvtx_gpu_proj_trace`; the empty domain in `:name` is cut off."""
    ranges = []
    for row in table_rows(text, RANGES_HEADING):
        name = row["Name"].lstrip(":")
        if name.startswith(STAGE_PREFIX):
            start_ns = int(row["Projected Start (ns)"])
            end_ns = start_ns + int(row["Projected Duration (ns)"])
            ranges.append(ProjectedRange(stage=name.removeprefix(STAGE_PREFIX), start_ns=start_ns, end_ns=end_ns))
    return tuple(ranges)


def read_kernels_by_stage(gpu_trace: str, ranges: Sequence[ProjectedRange]) -> tuple[MeasuredKernel, ...]:
    """Kernels of `cuda_gpu_trace` by name and stage, the longest first; copies and fills are not kernels.

    A kernel belongs to the innermost stage in which it began: of those that hold its start, the one that began last.
    """
    sums: dict[tuple[str, str | None], tuple[int, int]] = {}
    for row in table_rows(gpu_trace, GPU_TRACE_HEADING):
        if row["Name"].startswith(NOT_KERNELS):
            continue
        key = (row["Name"], _stage_at(int(row["Start (ns)"]), ranges))
        calls, total_ns = sums.get(key, (0, 0))
        sums[key] = (calls + 1, total_ns + int(row["Duration (ns)"]))
    kernels = [
        MeasuredKernel(name=name, stage=stage, calls=calls, total_ns=total_ns)
        for (name, stage), (calls, total_ns) in sums.items()
    ]
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.total_ns, kernel.name, kernel.stage or "")))


def _stage_at(moment_ns: int, ranges: Sequence[ProjectedRange]) -> str | None:
    around = [stage_range for stage_range in ranges if stage_range.start_ns <= moment_ns < stage_range.end_ns]
    return max(around, key=lambda stage_range: (stage_range.start_ns, -stage_range.end_ns)).stage if around else None


def read_ncu(text: str) -> tuple[MeasuredKernel, ...]:
    """One entry per launch of `ncu --csv --page raw --nvtx`, with every metric that is a number.

    The row below the heading holds units. The stage is the innermost range of ours in the stack of the launch.
    """
    rows = table_rows(text, NCU_HEADING)
    units = next(rows, {})
    kernels = []
    for row in rows:
        metrics = {name: number for name, value in row.items() if (number := _number(value)) is not None}
        if _DURATION not in metrics:
            raise PerfOptError(
                "The export of Nsight Compute has no time of its kernels.",
                why=f"there is no number under {_DURATION}",
                fix=f"ask for it: --metrics {_DURATION}",
            )
        kernels.append(
            MeasuredKernel(
                name=row["Kernel Name"],
                stage=_pushed_stage(row),
                calls=1,
                total_ns=round(metrics[_DURATION] * _ns_per_unit(units.get(_DURATION))),
                metrics={name: value for name, value in metrics.items() if "__" in name},
            )
        )
    return tuple(kernels)


def _ns_per_unit(unit: str | None) -> int:
    if unit not in _NS_PER_UNIT:
        raise PerfOptError(
            f"Nsight Compute gives the time of its kernels in {unit or 'no unit'}.",
            why=f"known: {', '.join(_NS_PER_UNIT)}; a guessed unit would make every time wrong",
            fix="export with --print-units=base",
        )
    return _NS_PER_UNIT[unit]


def _pushed_stage(row: Mapping[str, str]) -> str | None:
    """From a column such as `1 "<default domain>:stage: decode:none:..."`, outermost first."""
    pushed = " ".join(value for name, value in row.items() if _PUSHED in name)
    stages = re.findall(rf":{re.escape(STAGE_PREFIX)}([^:\"]+):", pushed)
    return stages[-1].strip() if stages else None


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


NSYS_REPORTS = ("nvtx_gpu_proj_trace", "cuda_gpu_trace")
NCU_METRICS = (
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum",
    "sm__inst_executed_pipe_tensor.sum",
)


def nsys_command(program: Sequence[str], report: Path) -> list[str]:
    """Record one pass of `program`: kernels and our ranges, from where the range of the pass begins to where it ends.

    Ranges that torch pushes are no registered strings, which the program ignores by default.
    """
    return [
        "nsys",
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=nvtx",
        f"--nvtx-capture={PASS_RANGE}",
        "--capture-range-end=stop",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--force-overwrite=true",
        f"--output={report}",
        *program,
    ]


def nsys_stats_command(report: Path, table: str) -> list[str]:
    """One table of a report as CSV on stdout."""
    return ["nsys", "stats", f"--report={table}", "--format=csv", "--force-export=true", "--quiet", str(report)]


def ncu_command(program: Sequence[str], log: Path, stage: str) -> list[str]:
    """Measure the kernels of one stage of `program`, each replayed for every group of metrics."""
    return [
        "ncu",
        "--nvtx",
        f"--nvtx-include={STAGE_PREFIX}{stage}/",
        "--target-processes=all",
        f"--metrics={','.join(NCU_METRICS)}",
        "--csv",
        "--page=raw",
        "--print-units=base",
        f"--log-file={log}",
        *program,
    ]


def run_nsys(program: Sequence[str], folder: Path, stage: str) -> tuple[MeasuredKernel, ...]:
    """Kernels of a whole pass by stage; `stage` is not asked for, since all of them come at once."""
    require_installed("nsys")
    report = folder / "nsys.nsys-rep"
    _run(nsys_command(program, report))
    ranges, gpu_trace = (_run(nsys_stats_command(report, table)) for table in NSYS_REPORTS)
    return read_kernels_by_stage(gpu_trace, read_ranges(ranges))


def run_ncu(program: Sequence[str], folder: Path, stage: str) -> tuple[MeasuredKernel, ...]:
    """Launches of one stage, each with its metrics."""
    require_installed("ncu")
    log = folder / "ncu.csv"
    _run(ncu_command(program, log, stage))
    return read_ncu(log.read_text("utf-8", errors="replace"))


def require_installed(program: str) -> None:
    """Refuse where the program is not on the path."""
    if shutil.which(program) is None:
        raise PerfOptError(
            f"{program} is not installed.",
            why=f"profiler.nsight={program} was asked for, and it is no part of Python's packages",
            fix="install NVIDIA's Nsight tools, or leave profiler.nsight out",
        )


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise PerfOptError(
            f"{command[0]} ended with {done.returncode}.",
            why="; ".join(said[-4:])[:500] or "it said nothing",
            fix=f"run it by hand: {' '.join(command)[:400]}",
        )
    return done.stdout
