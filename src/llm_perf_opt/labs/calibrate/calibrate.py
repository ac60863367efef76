"""Measure a machine: every probe in turn over several rounds, and the page faults of fresh memory."""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware.calibration import Calibration, RateTable, Timing
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.harness.environment import library_versions, torch_threads
from llm_perf_opt.labs.calibrate.memory import (
    cast_probe,
    elementwise_probes,
    fresh_byte,
    overhead_probes,
    resampling_probes,
    row_probes,
)
from llm_perf_opt.labs.calibrate.probe import Probe, Stopwatch, measure, sweep_buffer
from llm_perf_opt.labs.calibrate.products import (
    attention_probes,
    batched_product_probe,
    convolution_probes,
    narrow_product_probe,
    product_probes,
)

log = logging.getLogger(__name__)


def combined(rounds: Sequence[Calibration]) -> Calibration:
    """Rounds on one machine as one calibration.

    A moment in which other programs run, or none does, is seldom that of most rounds: the middle is how fast the
    machine is as a rule. Of two rounds the faster counts.
    """
    tables = zip(*(one.tables for one in rounds), strict=True)
    fresh = [one.fresh_byte for one in rounds if one.fresh_byte is not None]
    return replace(
        rounds[0],
        tables=tuple(_middle_table(same) for same in tables),
        fresh_byte=_middle(fresh) if fresh else None,
    )


def _middle_table(rounds: Sequence[RateTable]) -> RateTable:
    columns = zip(*(table.times for table in rounds), strict=True)
    return replace(rounds[0], times=tuple(map(_middle, columns)))


def _middle(times: Sequence[Timing]) -> Timing:
    return sorted(times, key=lambda time: time.median_s)[(len(times) - 1) // 2]


_POOL_BYTES = 768 * 2**20
_SMOKE_POOL_BYTES = 64 * 2**20
_REPORT_EVERY_S = 10.0
ROUNDS = 3


def calibrate(
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    clock: str = "wall",
    threads: int | None = None,
    rounds: int = ROUNDS,
    smoke: bool = False,
) -> Calibration:
    """Times of every family of work on `device`, in `dtype` and float32, with `threads` or as many as torch uses.

    `smoke` tries the smallest sizes only, once: it takes seconds, and shows that the machinery runs, not how fast the
    machine is.
    """
    _refuse_absent(device)
    with OneRun(), torch_threads(threads or None), Interruptible():
        watch = Stopwatch(device=device, clock=clock, swept=sweep_buffer(device))
        if smoke:
            probes = [probe.coarse() for probe in _probes(device, dtype, _SMOKE_POOL_BYTES)]
            return replace(_one_round(probes, replace(watch, fewest=2, most=3), "the only round"), is_smoke=True)
        probes = _probes(device, dtype, _POOL_BYTES)
        return combined([_one_round(probes, watch, f"round {number} of {rounds}") for number in range(1, rounds + 1)])


def _one_round(probes: list[Probe], watch: Stopwatch, title: str) -> Calibration:
    kind = torch.device(watch.device).type
    return Calibration(
        device=device_name(watch.device),
        kind=kind,
        threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(watch.device),
        library_versions=library_versions(),
        tables=tuple(_measured(probes, watch, title)),
        fresh_byte=fresh_byte(watch) if kind == "cpu" else None,
        clock=watch.clock,
    )


def device_name(device: str) -> str:
    """What the driver, or for a processor the system, calls it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes(device: str) -> int:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _probes(device: str, dtype: str, pool_bytes: int) -> list[Probe]:
    dtypes = tuple(dict.fromkeys((dtype, "float32")))
    probes = [*overhead_probes(device), *resampling_probes(device)]
    for name in dtypes:
        probes += elementwise_probes(name, device)
        probes += row_probes(name, device)
        probes += [cast_probe(name, other, device) for other in dtypes if other != name]
        probes += [narrow_product_probe(name, device), batched_product_probe(name, device)]
    probes += [*attention_probes(dtype, device), *convolution_probes(dtype, device)]
    return probes + product_probes(dtype, device, pool_bytes)


def _measured(probes: list[Probe], stopwatch: Stopwatch, title: str) -> list[RateTable]:
    tables, reported = [], time.monotonic()
    for done, probe in enumerate(probes, start=1):
        tables.append(measure(probe, stopwatch))
        if time.monotonic() - reported > _REPORT_EVERY_S:
            reported = time.monotonic()
            log.info("Calibrating, %s: %d of %d families of work.", title, done, len(probes))
    return tables


def _refuse_absent(device: str) -> None:
    kind = torch.device(device).type
    if kind not in ("cpu", "cuda"):
        raise UsageError(
            f"Cannot calibrate {device!r}.", why="cpu and cuda are known", fix="use --torch-device cpu or cuda"
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise PerfOptError("There is no CUDA device here.", why="torch finds none", fix="use --torch-device cpu")
