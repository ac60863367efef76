"""What the pages of a run cost, each workload traced once without weights, and the device with its peaks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.analyses.prediction import stage_works
from llm_perf_opt.analyses.profile import WorkloadCosts
from llm_perf_opt.api.costing import SOURCES_OF_A_FILE, CostRequest, cost_json, cost_of
from llm_perf_opt.api.profile.request import DeviceChoice, ProfileRequest, crop_grid
from llm_perf_opt.api.tracing import TraceRequest, trace_on_ghosts
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.protocols import ModelAdapter, Workload
from llm_perf_opt.core.report import Report

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


class PageCosts:
    """Costs by workload; pages that differ only in what is on them, or in size without other crops, cost the same."""

    def __init__(self, adapter: ModelAdapter, model: str, device: str) -> None:
        self._adapter = adapter
        self._model = model
        self._device = device  # that the traced code believes in
        self._known: dict[tuple[Any, ...], WorkloadCosts] = {}

    def of(self, pages: Sequence[PageMeasurement]) -> list[WorkloadCosts | None]:
        """One entry per page; equal workloads share one."""
        return [self._of(workload_of_page(page.workload)) for page in pages]

    def _of(self, workload: Workload) -> WorkloadCosts:
        key = tuple(value for name, value in asdict(workload).items() if name != "image")
        if key not in self._known:
            self._known[key] = self._traced(workload)
        return self._known[key]

    def _traced(self, workload: Workload) -> WorkloadCosts:
        request = TraceRequest(model=self._model, workload=workload, device=self._device)
        graphs = trace_on_ghosts(self._adapter, request)
        return WorkloadCosts(
            workload={name: value for name, value in asdict(workload).items() if value is not None},
            works={work.name: work for graph in graphs for work in stage_works(graph)},
        )


def workload_of_page(stored: Mapping[str, Any]) -> Workload:
    """Back from the plain values that a measurement keeps."""
    crops = stored["crops"]
    return Workload(**{**stored, "crops": None if crops is None else tuple(crops)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRun:
    """`static_compute.json`, and the same as a chapter."""

    text: str
    report: Report


def static_run(adapter: ModelAdapter, request: ProfileRequest, page: PageMeasurement) -> StaticRun:
    """The static report of the first page, or of the sizes that the configuration names instead."""
    sizes = request.static_analysis
    wished: dict[str, Any] = {
        "image": sizes.image,
        "mode": sizes.mode,
        "crops": crop_grid(sizes.crops),
        "prompt_tokens": sizes.prompt_tokens,
        "decode_steps": sizes.decode_steps,
    }
    given = {name: value for name, value in wished.items() if value is not None}
    workload = workload_of_page(page.workload)
    if "image" in given or "mode" in given:
        workload = replace(workload, crops=None)  # those of the page belong to its own size and mode
    workload = replace(workload, **given)
    wanted = CostRequest(model=request.model.name, workload=workload, device=request.device.torch)
    run = cost_of(adapter, wanted, SOURCES_OF_A_FILE)
    return StaticRun(text=cost_json(run), report=run.report)
