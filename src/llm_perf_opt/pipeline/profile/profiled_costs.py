"""What the pages of a run cost: each workload among them traced once without weights, and the static report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from llm_perf_opt.analyses.prediction import stage_works
from llm_perf_opt.analyses.profile import WorkloadCosts
from llm_perf_opt.document import Report
from llm_perf_opt.measurement import PageMeasurement
from llm_perf_opt.pipeline.cost_files import cost_json
from llm_perf_opt.pipeline.costing import SOURCES_OF_A_FILE, CostRequest, cost_of
from llm_perf_opt.pipeline.profile.profile_request import ProfileRequest, crop_grid
from llm_perf_opt.pipeline.tracing import TraceRequest, trace_on_ghosts
from llm_perf_opt.plugins import ModelAdapter, Workload

log = logging.getLogger(__name__)


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
