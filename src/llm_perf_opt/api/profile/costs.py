"""What the pages of a run cost, each workload traced once without weights, and the device with its peaks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.cost import SOURCES_OF_A_TRACE, cost_of_run
from llm_perf_opt.api.cost_answer import CostAnswer
from llm_perf_opt.api.profile.request import DeviceChoice
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.measurements.profile import WorkloadCosts
from llm_perf_opt.timing.stage_work import stage_works
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.need import RunMemory

log = logging.getLogger(__name__)


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
            why="the rates of so many threads are no peaks of another number: MFU and MBU would be wrong",
            fix=f"set run.threads={calibrated}, or measure again: llm-perf-opt devices calibrate --threads {running}",
        )


def _with_peak(device: Device, dtype: str) -> Device:
    device.peak(dtype)  # refused now, and not after the run
    return device


class PageTraces:
    """The weightless traces of a run's pages. Pages of one workload whose inputs are alike in shape share one."""

    def __init__(self, adapter: ModelAdapter, model: str, torch_device: str) -> None:
        self._adapter = adapter
        self._model = model
        self._torch_device = torch_device  # that the traced code sees
        self._known: dict[tuple[Any, ...], WorkloadCosts] = {}
        self._traces: dict[Workload, TracedRun] = {}

    def costs(self, pages: Sequence[PageMeasurement]) -> list[WorkloadCosts | None]:
        """One entry per page; pages of one trace share it."""
        return [self._costs_of(page) for page in pages]

    def memory(self, workload: Mapping[str, Any]) -> RunMemory:
        """What a run of the workload must hold at once."""
        from llm_perf_opt.costs.memory.need import run_memory

        return run_memory(self._trace(make_workload(self._adapter, **workload)).graphs)

    def static(
        self, workload: Mapping[str, Any], sizes: Mapping[str, Any], sources: Sequence[str] = SOURCES_OF_A_TRACE
    ) -> CostAnswer:
        """The costs of a workload from these sources; `sizes` replace fields of it."""
        asked = dict(workload)
        if "image" in sizes or "mode" in sizes:
            asked.pop("crops", None)  # those of the page belong to its own size and mode
        return cost_of_run(self._trace(make_workload(self._adapter, **{**asked, **sizes})), sources)

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
            origin = Origin(name=self._model, adapter=self._adapter, workload=workload, torch_device=self._torch_device)
            self._traces[workload] = trace_origin(origin)
        return self._traces[workload]
