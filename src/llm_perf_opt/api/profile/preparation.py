"""What `profile` does before the first timed pass: the programs it needs, the static analysis, the memory it takes."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.profile.costs import PageTraces
from llm_perf_opt.api.profile.profiled_model import ProfiledModel
from llm_perf_opt.api.profile.request import ProfileRequest
from llm_perf_opt.api.profile.run_folder import RunFolder
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.units import format_bytes

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.need import RunMemory
    from llm_perf_opt.measurements.timed.timed_runs import PageRun

log = logging.getLogger(__name__)

STATIC_FILES = ("static_compute.json", "static_compute.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The static analysis of a run. `traces` gives the costs of its pages; None where it is off or has failed."""

    traces: PageTraces | None = None
    static: CostAnswer | None = None
    memory: RunMemory | None = None  # that the first page needs
    files: tuple[Path, ...] = ()
    failure: str | None = None


def require_programs(request: ProfileRequest, model: ProfiledModel) -> None:
    """Refuse, before any work, an outside profiler that is not installed or has nothing to watch."""
    if request.profiler.nsight == "none":
        return
    if not model.has_workload:
        raise UsageError(
            "Nsight cannot run a module.", why="it starts a process of its own", fix="run your script under Nsight"
        )
    from llm_perf_opt.measurements.timed.nsight import require_installed

    require_installed(request.profiler.nsight)


def analyse(request: ProfileRequest, model: ProfiledModel, page: PageRun, kept: RunFolder) -> Prepared:
    """Trace the first page and write its static report. A model that cannot be traced can still be timed."""
    if not request.static_analysis.enabled:
        return Prepared()
    traces = PageTraces(model.adapter, request.model.name, request.device.torch)
    workload = asdict(page.run.workload)
    try:
        memory = traces.memory(workload)
        static = traces.static(workload, request.static_analysis.options(), request.static_analysis.source_names())
    except UsageError:  # a size or a source that there is not: nothing was measured yet
        raise
    except PerfOptError as error:
        log.warning("The static analysis failed: %s", error.what)
        return Prepared(failure=failure_text(error))
    report = REPORTERS.get("markdown")().render(static.report())
    texts = dict(zip(STATIC_FILES, (static.to_json(), report), strict=True))
    files = tuple(kept.write_text(name, text) for name, text in texts.items())
    return Prepared(traces=traces, static=static, memory=memory, files=files)


def failure_text(error: Exception) -> str:
    """What went wrong in one line."""
    told = f"{error.what} {error.why}" if isinstance(error, PerfOptError) else f"{type(error).__name__}: {error}"
    return " ".join(told.split())[:500]


def require_memory(memory: RunMemory | None, device: str, *, has_weights: bool) -> None:
    """Refuse a run that the machine has no memory for.

    The need is that of the trace: weights, buffers, inputs, cache and the most that is alive at once. What is unknown
    refuses nothing. On CUDA the weights are made in host memory first.
    """
    if memory is None or memory.total_bytes is None:
        return
    weights = max((phase.weight_bytes + phase.buffer_bytes for phase in memory.phases), default=0)
    need = memory.total_bytes - (weights if has_weights else 0)
    for place, needed, free in _places(device, need, 0 if has_weights else weights):
        if free is not None and needed > free:
            raise PerfOptError(
                f"The first page needs {format_bytes(needed)} of {place} memory, and {format_bytes(free)} are free.",
                why="by the static analysis: weights, buffers, inputs, cache and the most that is alive at once",
                fix="profile a smaller workload or another dtype, free memory, or add run.check_memory=false",
            )


def _places(device: str, need: int, weights: int) -> list[tuple[str, int, int | None]]:
    """Where memory is taken: its name, how much is needed, and how much is free."""
    from llm_perf_opt.harness.environment import free_device_bytes, free_memory_bytes

    if device == "cpu":
        return [("host", need, free_memory_bytes())]
    return [("host", weights, free_memory_bytes()), (f"{device} device", need, free_device_bytes(device))]
