"""`metrics.json`, object by object: what `profile` writes and a sweep reads back.

`metrics.schema.json` is generated from these records. Base units, the unit in the key; null is unknown, never zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from llm_perf_opt.core.reading import FileKind, read_json

METRICS_VERSION: Literal[1] = 1
METRICS_KIND = FileKind(
    name="metrics file",
    fix="run the same command again: what is measured is kept, and the file is made afresh",
    schema_version=METRICS_VERSION,
    is_sealed=True,
)

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class SpreadRow(_Object, frozen=True, kw_only=True):
    """Median, quartiles and extremes of a time."""

    samples: Annotated[int, Meta(ge=1)]
    median_ns: Number
    first_quartile_ns: Number
    third_quartile_ns: Number
    least_ns: Count
    most_ns: Count


class PassRow(_Object, frozen=True, kw_only=True):
    """One pass over one page."""

    wall_ns: Count
    stages_ns: Annotated[
        dict[str, tuple[Count, ...]],
        Meta(description="Own time of each stage, without stages inside it, each time it ran."),
    ]


class PageRow(_Object, frozen=True, kw_only=True):
    """One page or prompt, with every pass and every sample."""

    image: str | None
    workload: dict[str, Any]
    context_tokens: Count | None
    decode_steps: Count
    cache_tokens: Count | None
    token_ids: tuple[int, ...]
    text: str | None
    passes: Annotated[tuple[PassRow, ...], Meta(min_length=1)]
    cold: Annotated[PassRow | None, Meta(description="The very first pass of the process, where this page was it.")]
    peak_process_bytes: Count | None
    peak_device_bytes: Count | None
    start_process_bytes: Count | None
    input_shapes: Annotated[
        tuple[tuple[Count, ...], ...], Meta(description="Of the tensors that the first phase begins with.")
    ] = ()
    costs_index: Annotated[Count | None, Meta(description="Its entry in costs; null where no trace was made.")]


class DeviceRow(_Object, frozen=True, kw_only=True):
    """What the run is compared with."""

    id: str
    name: str
    dtype: str
    peak_flops_per_s: Count
    bandwidth_bytes_per_s: Count
    is_measured: bool
    sources: tuple[str, ...]


class TimedStageRow(_Object, frozen=True, kw_only=True):
    """One stage over all pages."""

    name: str
    occurrences: Annotated[
        Count, Meta(description="How often it ran in one pass over every page: steps for decode, pages for the others.")
    ]
    total_ns: Annotated[Number, Meta(description="The median over the passes of a page, added up over the pages.")]
    per_page: SpreadRow
    flops: Count | None
    bytes_moved: Count | None
    must_read_bytes: Annotated[Count | None, Meta(description="Weights and caches, read once in every forward.")]
    launches: Count | None
    mfu: Annotated[Number | None, Meta(description="flops / (total_ns * 1e-9) / device.peak_flops_per_s.")]
    mbu: Number | None
    flops_per_byte: Number | None
    achieved_flops_per_s: Number | None
    attainable_flops_per_s: Number | None
    lower_bound_s: Annotated[Number | None, Meta(description="The lower bound of one occurrence on the device.")]
    bound_by: Literal["compute", "bandwidth", "launches"] | None


class GroupRow(_Object, frozen=True, kw_only=True):
    """Several stages as one: their FLOPs over their time."""

    stages: tuple[str, ...]
    time_ns: Number
    flops: Count | None
    mfu: Number | None


class MemoryRow(_Object, frozen=True, kw_only=True):
    """The largest over all pages."""

    start_process_bytes: Count | None
    peak_process_bytes: Count | None
    peak_device_bytes: Count | None


class WorkRow(_Object, frozen=True, kw_only=True):
    """What one stage costs."""

    flops: Count
    required_flops_by_dtype: dict[str, Count] | None
    bytes_moved: Count
    must_read_bytes: Count | None
    launches: Count
    ops: Count
    unpriced_ops: Count


class CostsRow(_Object, frozen=True, kw_only=True):
    """What one pass over a page of this workload costs, by stage."""

    workload: dict[str, Any]
    stages: dict[str, WorkRow]


class MetricsFile(_Object, frozen=True, kw_only=True):
    """Every figure of a timed run next to the raw samples and costs that it follows from.

    Base units, the unit in the key; null is unknown, never zero.
    """

    schema_version: Literal[1]
    tool_version: str
    model: str
    request: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="The whole configuration, as in request.json.",
            extra_json_schema={"required": ["model", "workload", "device", "run", "static_analysis", "profiler"]},
        ),
    ]
    device: Annotated[DeviceRow | None, Meta(description="Null where its peaks are not known.")]
    stages: Annotated[tuple[TimedStageRow, ...], Meta(min_length=1)]
    model_figure: Annotated[GroupRow, Meta(description="Both forwards: vision, prefill and decode.")]
    language_model_figure: Annotated[GroupRow, Meta(description="Prefill without its vision stages, and decode.")]
    wall: Annotated[SpreadRow, Meta(description="One pass over one page, over all pages and passes.")]
    first_token: Annotated[
        SpreadRow | None,
        Meta(description="From the page to the first token: everything before decode; null where none was chosen."),
    ]
    decode_step: Annotated[
        SpreadRow | None, Meta(description="One decode step, over all pages and passes; null where none ran.")
    ]
    decode_tokens_per_s: Number | None
    unattributed_ns: Annotated[
        float, Meta(description="Time of the passes that is no stage's, median per page, added up over the pages.")
    ]
    memory: MemoryRow
    costs: Annotated[tuple[CostsRow, ...], Meta(description="One entry per distinct workload among the pages.")]
    pages: Annotated[tuple[PageRow, ...], Meta(min_length=1)]
    notes: tuple[str, ...]


def read_metrics(path: Path) -> MetricsFile:
    """The metrics of a finished run."""
    return read_json(path, MetricsFile, METRICS_KIND)
