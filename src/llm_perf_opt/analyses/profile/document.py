"""`metrics.json`: every figure of a run beside the raw samples and costs that it follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from llm_perf_opt.analyses.profile.join import RunFigures, TimedStage, WorkloadCosts
from llm_perf_opt.analyses.profile.metrics_file import (
    METRICS_VERSION,
    CostsRow,
    DeviceRow,
    GroupRow,
    MemoryRow,
    MetricsFile,
    PageRow,
    SpreadRow,
    StageRow,
    WorkRow,
)
from llm_perf_opt.analyses.time.lower_bound import BoundBy
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.reading import filled

_OF_ONE_DEVICE: Mapping[BoundBy, Literal["compute", "bandwidth", "launches"]] = {
    BoundBy.COMPUTE: "compute",
    BoundBy.BANDWIDTH: "bandwidth",
    BoundBy.LAUNCHES: "launches",
}


def metrics_document(
    *,
    tool_version: str,
    model: str,
    request: Mapping[str, Any],
    device: Device | None,
    dtype: str,
    figures: RunFigures,
    pages: Sequence[PageMeasurement],
    costs: Sequence[WorkloadCosts | None],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Plain values after `metrics.schema.json`: integers in base units, the unit in the key, null for unknown."""
    distinct = list({id(cost): cost for cost in costs if cost is not None}.values())
    place = {id(cost): index for index, cost in enumerate(distinct)}
    first_token, step = figures.first_token, figures.step
    rows = MetricsFile(
        schema_version=METRICS_VERSION,
        tool_version=tool_version,
        model=model,
        request=dict(request),
        device=None if device is None else filled(DeviceRow, device, dtype=dtype, peak_flops_per_s=device.peak(dtype)),
        stages=tuple(map(_stage, figures.stages)),
        model_figure=filled(GroupRow, figures.model),
        language_model_figure=filled(GroupRow, figures.language_model),
        wall=filled(SpreadRow, figures.wall),
        first_token=None if first_token is None else filled(SpreadRow, first_token),
        decode_step=None if step is None else filled(SpreadRow, step),
        decode_tokens_per_s=None if step is None else 1e9 / step.median_ns,
        unattributed_ns=figures.unattributed_ns,
        memory=_memory(pages),
        costs=tuple(map(_costs, distinct)),
        pages=tuple(
            PageRow(**page.to_json(), costs_index=None if cost is None else place[id(cost)])
            for page, cost in zip(pages, costs, strict=True)
        ),
        notes=tuple(notes),
    )
    return plain_values(rows)


def _stage(stage: TimedStage) -> StageRow:
    efficiency = stage.efficiency
    bound_by = None if efficiency is None else efficiency.bound_by
    of_device = ("mfu", "mbu", "achieved_flops_per_s", "attainable_flops_per_s", "lower_bound_s")
    return filled(
        StageRow,
        stage,
        per_page=filled(SpreadRow, stage.time),
        flops_per_byte=None if efficiency is None else efficiency.intensity,
        bound_by=None if bound_by is None else _OF_ONE_DEVICE[bound_by],
        **{name: None if efficiency is None else getattr(efficiency, name) for name in of_device},
    )


def _memory(pages: Sequence[PageMeasurement]) -> MemoryRow:
    names = MemoryRow.__struct_fields__
    return MemoryRow(**{name: _largest([getattr(page, name) for page in pages]) for name in names})


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _costs(cost: WorkloadCosts) -> CostsRow:
    return CostsRow(
        workload=dict(cost.workload),
        stages={
            name: filled(WorkRow, work, required_flops_by_dtype=work.required_by_dtype)
            for name, work in cost.works.items()
        },
    )
