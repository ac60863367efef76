"""Times of a run joined with FLOPs and bytes of traces of the same workloads and the peaks of the device.

The time of a stage is the median over the passes of a page, added up over the pages. Its cost is counted for one pass
over each page. So a figure of the run is one division, and nothing is weighted by how often a page was repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import DECODE, SAMPLING, STAGES_OUTSIDE_THE_MODEL, PageMeasurement
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.timing.efficiency import StageEfficiency, check_physics, stage_efficiency
from llm_perf_opt.timing.stage_work import StageWork


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, quartiles and extremes of a time."""

    samples: int
    median_ns: float
    first_quartile_ns: float
    third_quartile_ns: float
    least_ns: int
    most_ns: int

    @property
    def quartile_range_ns(self) -> float:
        """The interquartile range: the spread that one disturbed pass does not move."""
        return self.third_quartile_ns - self.first_quartile_ns


def spread_of(samples_ns: Sequence[int]) -> Spread:
    """Quartiles by linear interpolation between the sorted samples; a single sample is all five numbers."""
    if not samples_ns:
        raise ValueError("no samples have no spread")
    ordered = sorted(samples_ns)
    return Spread(
        samples=len(ordered),
        median_ns=float(median(ordered)),
        first_quartile_ns=_at(ordered, 0.25),
        third_quartile_ns=_at(ordered, 0.75),
        least_ns=ordered[0],
        most_ns=ordered[-1],
    )


def _at(ordered: Sequence[int], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


LANGUAGE_STAGES = ("prefill", DECODE)
_GAP_SHARE = 0.05  # of a pass
_GAP_NS = 10_000_000  # and besides, for short passes: one interruption by the system


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCosts:
    """What one pass over a page of this workload costs, by stage."""

    workload: Mapping[str, object]
    works: Mapping[str, StageWork]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStage:
    """One stage over all pages. `time` is over passes of single pages, `total_ns` the sum of the pages' medians.

    `occurrences` is how often it ran in one pass over every page: decode steps for decode, pages for the others.
    `efficiency` describes one occurrence on average, None without costs or without a known device.
    """

    name: str
    time: Spread
    total_ns: float
    occurrences: int
    flops: int | None
    bytes_moved: int | None
    must_read_bytes: int | None
    launches: int | None
    efficiency: StageEfficiency | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedGroup:
    """Several stages as one: their FLOPs over their time. None is unknown."""

    stages: tuple[str, ...]
    time_ns: float
    flops: int | None
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """All there is to say about a run, apart from its raw samples."""

    stages: tuple[TimedStage, ...]
    model: TimedGroup  # both forwards: vision, prefill and decode
    language_model: TimedGroup  # prefill without its vision stages, and decode
    wall: Spread
    first_token: Spread | None  # None: no token was chosen
    step: Spread | None  # None: no decode step ran
    unattributed_ns: float


def join_run(
    pages: Sequence[PageMeasurement], costs: Sequence[WorkloadCosts | None], device: Device | None, dtype: str
) -> RunFigures:
    """`costs` has one entry per page, None where no trace was made. What no device can do is refused."""
    _require_sums(pages)
    names = list(dict.fromkeys(name for page in pages for timed in page.passes for name in timed.stages_ns))
    stages = tuple(_stage(name, pages, costs, device, dtype) for name in names)
    known = [stage.efficiency for stage in stages if stage.efficiency is not None]
    if device is not None:
        check_physics(known, device)
    inside = tuple(name for name in names if name not in STAGES_OUTSIDE_THE_MODEL)
    steps = [ns for page in pages for pass_ in page.passes for ns in pass_.stages_ns.get(DECODE, ())]
    return RunFigures(
        stages=stages,
        model=_group(stages, inside, device, dtype),
        language_model=_group(stages, LANGUAGE_STAGES, device, dtype),
        wall=spread_of([timed.wall_ns for page in pages for timed in page.passes]),
        first_token=spread_of([_first_token_ns(timed.stages_ns) for page in pages for timed in page.passes])
        if SAMPLING in names
        else None,
        step=spread_of(steps) if steps else None,
        unattributed_ns=sum(median(timed.unattributed_ns for timed in page.passes) for page in pages),
    )


def _stage(
    name: str,
    pages: Sequence[PageMeasurement],
    costs: Sequence[WorkloadCosts | None],
    device: Device | None,
    dtype: str,
) -> TimedStage:
    total_ns = sum(median(pass_.stage_ns(name) for pass_ in page.passes) for page in pages)
    works = [None if cost is None else cost.works.get(name) for cost in costs]
    occurrences = sum(page.decode_steps for page in pages) if name == DECODE else len(pages)
    flops = known_sum([None if work is None else work.flops for work in works])
    bytes_moved = known_sum([None if work is None else work.bytes_moved for work in works])
    launches = known_sum([None if work is None else work.launches for work in works])
    must_read = known_sum([None if work is None else work.must_read_bytes for work in works])
    efficiency = None
    if device is not None and flops is not None and occurrences and total_ns:
        efficiency = stage_efficiency(
            name,
            flops=round(flops / occurrences),
            bytes_moved=None if bytes_moved is None else round(bytes_moved / occurrences),
            weight_bytes=None if must_read is None else round(must_read / occurrences),
            seconds=total_ns / occurrences * 1e-9,
            device=device,
            dtype=dtype,
            launches=None if launches is None else round(launches / occurrences),
            required_by_dtype=_required_by_dtype(works, occurrences),
        )
    return TimedStage(
        name=name,
        time=spread_of([timed.stage_ns(name) for page in pages for timed in page.passes]),
        total_ns=total_ns,
        occurrences=occurrences,
        flops=flops,
        bytes_moved=bytes_moved,
        must_read_bytes=must_read,
        launches=launches,
        efficiency=efficiency,
    )


def _required_by_dtype(works: Sequence[StageWork | None], occurrences: int) -> dict[str, int] | None:
    """FLOPs of one occurrence that no implementation can leave out; None where the FLOPs of a page are not known."""
    total: Counter[str] = Counter()
    for work in works:
        if work is None or work.required_by_dtype is None:
            return None
        total.update(work.required_by_dtype)
    return {dtype: round(flops / occurrences) for dtype, flops in total.items()}


def _group(stages: Sequence[TimedStage], names: Sequence[str], device: Device | None, dtype: str) -> TimedGroup:
    chosen = [stage for stage in stages if stage.name in names]
    flops = known_sum([stage.flops for stage in chosen])
    time_ns = sum(stage.total_ns for stage in chosen)
    is_known = device is not None and flops is not None and time_ns > 0
    return TimedGroup(
        stages=tuple(stage.name for stage in chosen),
        time_ns=time_ns,
        flops=flops,
        mfu=flops / (time_ns * 1e-9) / device.peak(dtype) if is_known and device is not None and flops else None,
    )


def _first_token_ns(stages_ns: Mapping[str, tuple[int, ...]]) -> int:
    """From the page to the first token: everything before decode, and the first choice of a token."""
    before = sum(sum(samples) for name, samples in stages_ns.items() if name not in (DECODE, SAMPLING))
    return before + sum(stages_ns.get(SAMPLING, ())[:1])


def _require_sums(pages: Sequence[PageMeasurement]) -> None:
    """Stages are parts of their pass: together never longer than it, and in its best pass nearly as long.

    A stage that is missing is missing from every pass; a gap in one of them is the machine's doing.
    """
    for page in pages:
        best = min(page.passes, key=lambda timed: timed.unattributed_ns)
        gap_ns = best.unattributed_ns
        if not 0 <= gap_ns <= _GAP_SHARE * best.wall_ns + _GAP_NS:
            raise PerfOptError(
                f"{page.title}: the stages do not add up to the pass.",
                why=f"the pass took {format_seconds(best.wall_ns * 1e-9)}, its stages "
                f"{format_seconds((best.wall_ns - gap_ns) * 1e-9)}",
                fix="measure again on a quiet machine; if it stays, a stage is missing or counted twice",
            )
