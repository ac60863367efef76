"""What `profile` does before the first timed pass: programs, device, static analysis, the memory that a page takes.

What the pages of a run cost comes from traces without weights, one for each workload.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.cost import SOURCES_OF_A_TRACE, CostAnswer, cost_of_run
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device, find_device, load_devices, reported_elsewhere
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.plugins import REPORTERS, make_workload
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.measurements.profile import WorkloadCosts
from llm_perf_opt.measurements.profile.profiled_model import ProfiledModel
from llm_perf_opt.measurements.profile.request import DeviceChoice, ProfileRequest
from llm_perf_opt.measurements.profile.run_folder import RunFolder
from llm_perf_opt.timing.stage_work import stage_works
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.need import RunMemory
    from llm_perf_opt.measurements.timed.timed_runs import PageRun

log = logging.getLogger(__name__)

STATIC_FILES = ("static_compute.json", "static_compute.md")


def find_profiled_device(choice: DeviceChoice, environment: Mapping[str, Any], dtype: str) -> Device | None:
    """A named device must be known, with a peak for `dtype`; one that is only reported may be unknown, and is None.

    A processor that was calibrated with another number of threads than the run has is refused, found by either way.
    """
    device = _find(choice, environment, dtype)
    if device is not None and device.threads is not None:
        _check_threads(device, device.threads, environment["torch"]["threads"])
    return device


def _find(choice: DeviceChoice, environment: Mapping[str, Any], dtype: str) -> Device | None:
    devices = None if choice.devices is None else Path(choice.devices)
    if choice.name is not None:
        return _with_peak(find_device(choice.name, devices), dtype)
    reported = environment["device"]["reported_name"]
    if reported is None:
        return None
    try:
        return _with_peak(find_device(reported, devices), dtype)
    except PerfOptError as error:
        log.info("%s MFU and MBU will not be known: llm-perf-opt devices calibrate measures the peaks.", error.what)
        return None


def _check_threads(device: Device, calibrated: int, running: int) -> None:
    if calibrated != running:
        raise UsageError(
            f"The number of threads is {running} in the run and {calibrated} in the calibration of {device.id}.",
            why="the rates of this many threads are no peaks of another number: MFU and MBU would be wrong",
            fix=f"set run.threads={calibrated}, or measure again: llm-perf-opt devices calibrate --threads {running}",
        )


def _with_peak(device: Device, dtype: str) -> Device:
    device.peak(dtype)  # refused now, and not after the run
    return device


def require_recorded_on(device: Device | None, reported: str | None, *, on_host: bool) -> None:
    """Refuse to join what one device ran with what is predicted of another; `reported` None: nobody knows which ran.

    All devices of the package are accelerators, so a run on the processor is of none of them.
    """
    if device is None:
        return
    other = reported_elsewhere(device, reported)
    ran_on = "the processor" if on_host and device.id in load_devices().devices else other and other.name
    if ran_on:
        raise UsageError(
            f"The recording is made on {ran_on}, and the prediction is for {device.name}.",
            why="measured and predicted time are compared kernel by kernel, which needs one device for both",
            fix=f"name the device that runs{f' ({other.id})' if other else ''} or none; what {device.id} would take "
            f"is predicted without a run: llm-perf-opt trace MODEL --device {device.id}",
        )


class PageTraces:
    """The weightless traces of a run's pages. Pages of one workload with inputs of the same shapes share a trace."""

    def __init__(self, adapter: ModelAdapter, model: str, torch_device: str) -> None:
        self._adapter = adapter
        self._model = model
        self._torch_device = torch_device  # that the traced code sees
        self._known: dict[tuple[Any, ...], WorkloadCosts] = {}
        self._traces: dict[Workload, TracedRun] = {}

    def costs(self, pages: Sequence[PageMeasurement]) -> list[WorkloadCosts | None]:
        """One entry per page; pages of one trace share it."""
        return [self._costs_of(page) for page in pages]

    def of(self, page: PageMeasurement) -> TracedRun:
        """The trace of one page."""
        return self._trace(make_workload(self._adapter, **page.workload))

    def memory(self, workload: Mapping[str, Any]) -> RunMemory:
        """What a run of the workload must hold at once."""
        from llm_perf_opt.costs.memory.need import run_memory

        return run_memory(self._trace(make_workload(self._adapter, **workload)).graphs)

    def static(
        self, workload: Mapping[str, Any], sizes: Mapping[str, Any], sources: Sequence[str] = SOURCES_OF_A_TRACE
    ) -> CostAnswer:
        """The costs of a workload from these sources; `sizes` replace fields of it."""
        fields = dict(workload)
        if "image" in sizes or "mode" in sizes:
            fields.pop("crops", None)  # the crops of a page belong to its own size and mode
        return cost_of_run(self._trace(make_workload(self._adapter, **{**fields, **sizes})), sources)

    def _costs_of(self, page: PageMeasurement) -> WorkloadCosts:
        workload = make_workload(self._adapter, **page.workload)
        fields = asdict(workload)
        if page.input_shapes:
            fields.pop("image", None)  # the shapes say all that it changes
        key = (page.input_shapes, *fields.values())
        if key not in self._known:
            self._known[key] = WorkloadCosts(
                workload={name: value for name, value in asdict(workload).items() if value is not None},
                works={work.name: work for graph in self._trace(workload).graphs for work in stage_works(graph)},
            )
        return self._known[key]

    def _trace(self, workload: Workload) -> TracedRun:
        if workload not in self._traces:
            origin = Origin(name=self._model, source=self._adapter, workload=workload, torch_device=self._torch_device)
            self._traces[workload] = trace_origin(origin)
        return self._traces[workload]


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
    if request.profiler.join and not request.static_analysis.enabled:
        raise UsageError(
            "profiler.join needs the static analysis.",
            why="the recording is laid on the traced ops",
            fix="leave out static_analysis=off",
        )
    if request.profiler.nsight in ("none", "installed"):
        return
    if not model.has_workload:
        raise UsageError(
            "Nsight cannot run a module.", why="it starts a process of its own", fix="run your script under Nsight"
        )
    from llm_perf_opt.measurements.timed.nsight import require_installed

    require_installed(request.profiler.nsight)


def analyse(request: ProfileRequest, model: ProfiledModel, page: PageRun, run_folder: RunFolder) -> Prepared:
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
    files = tuple(run_folder.write_text(name, text) for name, text in texts.items())
    return Prepared(traces=traces, static=static, memory=memory, files=files)


def failure_text(error: Exception) -> str:
    """What went wrong in one line."""
    text = f"{error.what} {error.why}" if isinstance(error, PerfOptError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]


def require_memory(memory: RunMemory | None, device: str, *, has_weights: bool) -> None:
    """Refuse a run that the machine has no memory for.

    The trace says what is needed: weights, buffers, inputs, cache and the most that is alive at once. An unknown need
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
