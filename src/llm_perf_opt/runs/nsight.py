"""Nsight around a process of ours: command lines that capture our ranges alone, and what comes back as kernels."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.errors import PerfOptError
from llm_perf_opt.execution.stage_ranges import PASS_RANGE, STAGE_PREFIX
from llm_perf_opt.measurement import Kernel
from llm_perf_opt.runs.nsight_tables import read_kernels_by_stage, read_ncu, read_ranges

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

    Ranges that torch pushes are no registered strings, which the program ignores unless told.
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


def run_nsys(program: Sequence[str], folder: Path, stage: str) -> tuple[Kernel, ...]:
    """Kernels of a whole pass by stage; `stage` is not asked for, since all of them come at once."""
    _require("nsys")
    report = folder / "nsys.nsys-rep"
    _run(nsys_command(program, report))
    ranges, gpu_trace = (_run(nsys_stats_command(report, table)) for table in NSYS_REPORTS)
    return read_kernels_by_stage(gpu_trace, read_ranges(ranges))


def run_ncu(program: Sequence[str], folder: Path, stage: str) -> tuple[Kernel, ...]:
    """Launches of one stage, each with its metrics."""
    _require("ncu")
    log = folder / "ncu.csv"
    _run(ncu_command(program, log, stage))
    return read_ncu(log.read_text("utf-8", errors="replace"))


def _require(program: str) -> None:
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
