"""One pass under torch.profiler: a Chrome trace and the time of every operator by stage; and peak memory."""

from __future__ import annotations

import json
import logging
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from llm_perf_opt.core.measurement import OperatorTime
from llm_perf_opt.core.output_files import move_whole, write_whole
from llm_perf_opt.harness.profiler_details import (
    OpDetail,
    ProfilerOptions,
    annotate,
    exported_trace,
    is_range,
    op_details,
)
from llm_perf_opt.harness.quiet import quiet_profiler
from llm_perf_opt.harness.stage_ranges import STAGE_PREFIX

log = logging.getLogger(__name__)


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing 5 sets the peak to what is resident now


def resident_bytes() -> int | None:
    """What the process occupies now; None where the system does not tell."""
    return _status_bytes("VmRSS")


class PeakMemory:
    """Peaks since it was made. Without a Linux `/proc` the process's peak is that since its start."""

    def __init__(self, device: str) -> None:
        self._cuda = device if torch.device(device).type == "cuda" else None
        try:
            _RESET.write_text(_RESET_PEAK)
        except OSError as error:
            log.debug("the peak of the process cannot be reset: %s", error)
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def process_bytes(self) -> int | None:
        """The largest resident set."""
        known = _status_bytes("VmHWM")
        if known is not None:
            return known
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def device_bytes(self) -> int | None:
        """The most that torch's allocator had given out on the CUDA device of the run; None without CUDA."""
        return None if self._cuda is None else int(torch.cuda.max_memory_allocated(self._cuda))


def _status_bytes(name: str) -> int | None:
    """A field of `/proc/self/status`, which counts in kibibytes."""
    try:
        lines = _STATUS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields[name].split()[0]) * 1024 if name in fields else None


OUTSIDE = "(outside)"  # between the stages
_NOT_RECORDED = OpDetail()


def profile_operators(
    run: Callable[[], object], device: str, chrome_trace: Path, options: ProfilerOptions | None = None
) -> tuple[OperatorTime, ...]:
    """Operators by stage, the longest own time first; `run` is one pass that names its stages, or its modules too."""
    on_cuda = torch.device(device).type == "cuda"
    options = options or ProfilerOptions()
    with quiet_profiler(), options.profiler(device) as profiler:
        run()
    details = op_details(profiler, options)
    _export(profiler, chrome_trace, details)
    events = profiler.events() or ()
    if options:
        events = [event for event in events if event.id in details or is_range(event.name)]  # no Python functions
    return _by_stage(events, details, on_cuda=on_cuda)


def _export(profiler: profile, chrome_trace: Path, details: Mapping[int, OpDetail]) -> None:
    """Whole or not at all."""
    with exported_trace(profiler, chrome_trace.parent) as file:
        if not details:
            move_whole(file, chrome_trace)
            return
        document = json.loads(file.read_text("utf-8", errors="replace"))
    annotate(document, details)
    write_whole(chrome_trace, [json.dumps(document).encode()])


def _by_stage(events: Iterable[Any], details: Mapping[int, OpDetail], *, on_cuda: bool) -> tuple[OperatorTime, ...]:
    sums: dict[tuple[str, str, str | None, str | None], list[float]] = {}
    for event in events:
        if is_range(event.name) or _is_kernel(event):
            continue
        detail = details.get(event.id, _NOT_RECORDED)
        key = (_stage_of(event), event.name, detail.module, detail.source)
        row = sums.setdefault(key, [0, 0.0, 0.0, 0.0, 0])
        row[0] += 1
        row[1] += event.self_cpu_time_total
        row[2] += event.cpu_time_total
        row[3] += event.self_device_time_total
        row[4] += detail.self_allocated_bytes or 0
    has_memory = any(detail.self_allocated_bytes is not None for detail in details.values())
    times = [
        OperatorTime(
            stage=stage,
            operator=operator,
            calls=int(calls),
            self_ns=round(own_us * 1000),
            total_ns=round(total_us * 1000),
            device_ns=round(device_us * 1000) if on_cuda else None,
            module=module,
            source=source,
            self_allocated_bytes=int(allocated) if has_memory else None,
        )
        for (stage, operator, module, source), (calls, own_us, total_us, device_us, allocated) in sums.items()
    ]
    return tuple(sorted(times, key=_longest_first))


def _longest_first(time: OperatorTime) -> tuple[int, str, str, str, str]:
    return -(time.device_ns or time.self_ns), time.stage, time.operator, time.module or "", time.source or ""


def _is_kernel(event: Any) -> bool:
    """Kernels are events of their own next to the operator that launched them, and are part of its time."""
    return bool(event.device_type.name != "CPU")


def _stage_of(event: Any) -> str:
    """The innermost stage around an operator."""
    while event is not None:
        if event.name.startswith(STAGE_PREFIX):
            return str(event.name.removeprefix(STAGE_PREFIX))
        event = event.cpu_parent
    return OUTSIDE
