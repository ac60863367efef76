"""`metrics.json`: every figure of a run beside the raw samples and costs that it follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from llm_perf_opt.analyses.profile.join import RunFigures, Spread, TimedGroup, TimedStage, WorkloadCosts
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
    rows = MetricsFile(
        schema_version=METRICS_VERSION,
        tool_version=tool_version,
        model=model,
        request=dict(request),
        device=None if device is None else _device(device, dtype),
        stages=tuple(map(_stage, figures.stages)),
        model_figure=_group(figures.model),
        language_model_figure=_group(figures.language_model),
        wall=_spread(figures.wall),
        first_token=None if figures.first_token is None else _spread(figures.first_token),
        decode_step=None if figures.step is None else _spread(figures.step),
        decode_tokens_per_s=None if figures.step is None else 1e9 / figures.step.median_ns,
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


def _device(device: Device, dtype: str) -> DeviceRow:
    return DeviceRow(
        id=device.id,
        name=device.name,
        dtype=dtype,
        peak_flops_per_s=device.peak(dtype),
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        is_measured=device.is_measured,
        sources=device.sources,
    )


def _spread(spread: Spread) -> SpreadRow:
    return SpreadRow(**asdict(spread))


def _stage(stage: TimedStage) -> StageRow:
    efficiency = stage.efficiency
    bound_by = None if efficiency is None else efficiency.bound_by
    return StageRow(
        name=stage.name,
        occurrences=stage.occurrences,
        total_ns=stage.total_ns,
        per_page=_spread(stage.time),
        flops=stage.flops,
        bytes_moved=stage.bytes_moved,
        must_read_bytes=stage.must_read_bytes,
        launches=stage.launches,
        mfu=None if efficiency is None else efficiency.mfu,
        mbu=None if efficiency is None else efficiency.mbu,
        flops_per_byte=None if efficiency is None else efficiency.intensity,
        achieved_flops_per_s=None if efficiency is None else efficiency.achieved_flops_per_s,
        attainable_flops_per_s=None if efficiency is None else efficiency.attainable_flops_per_s,
        lower_bound_s=None if efficiency is None else efficiency.lower_bound_s,
        bound_by=None if bound_by is None else _OF_ONE_DEVICE[bound_by],
    )


def _group(group: TimedGroup) -> GroupRow:
    return GroupRow(**asdict(group))


def _memory(pages: Sequence[PageMeasurement]) -> MemoryRow:
    return MemoryRow(
        start_process_bytes=_largest([page.start_process_bytes for page in pages]),
        peak_process_bytes=_largest([page.peak_process_bytes for page in pages]),
        peak_device_bytes=_largest([page.peak_device_bytes for page in pages]),
    )


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _costs(cost: WorkloadCosts) -> CostsRow:
    return CostsRow(
        workload=dict(cost.workload),
        stages={
            name: WorkRow(
                flops=work.flops,
                required_flops_by_dtype=None if work.required_by_dtype is None else dict(work.required_by_dtype),
                bytes_moved=work.bytes_moved,
                must_read_bytes=work.must_read_bytes,
                launches=work.launches,
                ops=work.ops,
                unpriced_ops=work.unpriced_ops,
            )
            for name, work in cost.works.items()
        },
    )
