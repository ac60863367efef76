"""The time of a phase at many points at once, by any source of rates.

The rates of a data sheet are applied to columns of kernel sizes, measured tables to the kernels of all points. Every
other source, and a cell with kernels that are no forms, is asked point by point; the answer says which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.sweeps.function.figures.kernel_forms import (
    CollectiveCounts,
    CollectiveForms,
    KernelCounts,
    KernelForms,
)
from llm_perf_opt.sweeps.function.figures.needs import NecessaryForms, must_read_bytes
from llm_perf_opt.sweeps.function.form import AnsweredBy, Column, Evaluation, Point
from llm_perf_opt.timing.collective_time import band_of, time_on_links
from llm_perf_opt.timing.datasheet_rates import DataSheetRates
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.lower_bound import BoundBy, fastest_peak
from llm_perf_opt.timing.predict import StageTime, stage_time
from llm_perf_opt.timing.rates import Piece, Pieces, StagePieces
from llm_perf_opt.timing.sheet_columns import BOUNDS, KernelColumns, sheet_times
from llm_perf_opt.timing.stage_work import work_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """A phase at many points, its stages one after the other, with the fields of a stage's time.

    `bound_by` is the bottleneck of the longest stage. None: the source has no such figure, or not at every point.
    """

    lower_bound_s: Floats | None
    low_s: Floats
    high_s: Floats
    expected_s: Floats | None
    device_low_s: Floats
    device_high_s: Floats
    host_low_s: Floats
    host_high_s: Floats
    bound_by: NDArray[np.object_]  # of BoundBy, or None
    untimed_ops: NDArray[np.int64]  # that no rate of the source describes: they are in no sum
    origin: AnsweredBy

    def taken(self, rows: Column) -> TimeColumns:
        """The columns with these rows, in their order."""
        changed: dict[str, Any] = {
            field.name: None if (column := getattr(self, field.name)) is None else column[rows]
            for field in fields(self)
            if field.name != "origin"
        }
        return replace(self, **changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageColumns:
    lower_bound_s: Floats | None
    device_low_s: Floats
    device_high_s: Floats
    host_low_s: float
    host_high_s: float
    bound_by: NDArray[np.int64]  # place in BoundBy
    untimed: NDArray[np.int64]

    @property
    def low_s(self) -> Floats:
        return np.maximum(self.device_low_s, self.host_low_s)

    @property
    def high_s(self) -> Floats:
        return np.maximum(self.device_high_s, self.host_high_s)


def times_by_form(
    kernels: KernelCounts,
    needs: Mapping[str, NecessaryForms],
    policy: str,
    at: Evaluation,
    rates: DataSheetRates,
    collectives: CollectiveCounts | None = None,
) -> TimeColumns:
    """The times of all points from forms; equal to a prediction of each point but for the last digits of a float."""
    stages = [
        _stage(counts, needs.get(name), policy, at, rates, {} if collectives is None else collectives.get(name, {}))
        for name, counts in kernels.items()
    ]
    zero = np.zeros(at.size)
    bounds = [stage.lower_bound_s for stage in stages]
    known = [bound for bound in bounds if bound is not None]
    slowest = np.argmax(np.stack([stage.high_s for stage in stages]), axis=0) if stages else np.zeros(at.size, int)
    limits = np.array(BOUNDS, dtype=object)
    by_stage = np.stack([stage.bound_by for stage in stages]) if stages else np.zeros((1, at.size), dtype=np.int64)
    return TimeColumns(
        lower_bound_s=sum(known, zero) if len(known) == len(bounds) else None,
        low_s=sum((stage.low_s for stage in stages), zero),
        high_s=sum((stage.high_s for stage in stages), zero),
        expected_s=None,
        device_low_s=sum((stage.device_low_s for stage in stages), zero),
        device_high_s=sum((stage.device_high_s for stage in stages), zero),
        host_low_s=zero + sum(stage.host_low_s for stage in stages),
        host_high_s=zero + sum(stage.host_high_s for stage in stages),
        bound_by=limits[by_stage[slowest, np.arange(at.size)]],
        untimed_ops=sum((stage.untimed for stage in stages), np.zeros(at.size, dtype=np.int64)),
        origin=AnsweredBy.FORM,
    )


def _stage(
    counts: Mapping[KernelForms, int],
    needs: NecessaryForms | None,
    policy: str,
    at: Evaluation,
    rates: DataSheetRates,
    collectives: Mapping[CollectiveForms, int],
) -> _StageColumns:
    low, high = np.zeros(at.size), np.zeros(at.size)
    shares = np.zeros((len(BOUNDS), at.size))
    for kernel, count in counts.items():
        if kernel.kind is KernelKind.COMMUNICATION:
            continue
        fast, slow, limit = sheet_times(_sized(kernel, at), rates)
        low += fast * count
        high += slow * count
        for place in range(len(BOUNDS)):
            shares[place] += np.where(limit == place, slow * count, 0.0)
    bound = None if needs is None else _lower_bound(needs, policy, at, rates)
    if bound is not None:
        seconds, bandwidth_s = bound
        least = np.maximum(seconds, bandwidth_s / rates.best_bandwidth_share)
        low, high = np.maximum(low, least), np.maximum(high, least)
    links = links_of(counts, at, rates.cluster, by_engine=rates.is_engine)
    low, high = np.maximum(low, links.low_s), high + links.high_s
    shares[BOUNDS.index(BoundBy.COMMUNICATION)] = links.high_s
    launch, launches = rates.launch_time(), sum(counts.values())
    host_low, host_high = launch.low * launches, launch.high * launches
    is_host = np.sqrt(host_low * host_high) > np.sqrt(low * high)
    if rates.is_engine:  # what `predict` calls so
        shares[BOUNDS.index(BoundBy.KERNEL_STARTS)] = shares[BOUNDS.index(BoundBy.LAUNCHES)]
        shares[BOUNDS.index(BoundBy.LAUNCHES)] = 0.0
    return _StageColumns(
        lower_bound_s=None
        if bound is None
        else bound[0]
        if rates.cluster is None
        else np.maximum(bound[0], least_seconds(collectives, at, rates.cluster)),
        device_low_s=low,
        device_high_s=high,
        host_low_s=host_low,
        host_high_s=host_high,
        bound_by=np.where(is_host, BOUNDS.index(BoundBy.LAUNCHES), np.argmax(shares, axis=0)),
        untimed=links.untimed,
    )


def _lower_bound(needs: NecessaryForms, policy: str, at: Evaluation, rates: DataSheetRates) -> tuple[Floats, Floats]:
    """The bound in seconds, and the part of it that is bandwidth."""
    device = rates.device
    compute_s = np.zeros(at.size)
    for dtype, flops in needs.flops_by_dtype.items():
        compute_s += _floats(at.of(flops)) / fastest_peak(dtype, device)
    must_read = np.zeros(at.size) if needs.bytes is None else _floats(must_read_bytes(needs, policy, at))
    from_memory = np.maximum(must_read - at.of(needs.forwards) * (device.cache_bytes or 0), 0.0)
    bandwidth_s = from_memory / device.bandwidth_bytes_per_s
    return np.maximum(compute_s, bandwidth_s), bandwidth_s


def _sized(kernel: KernelForms, at: Evaluation) -> KernelColumns:
    """One kernel at all points."""
    return KernelColumns(
        kind=KernelKind(kernel.kind),
        dtype=kernel.dtype,
        has_flops=bool(kernel.flops.terms),
        flops=at.of(kernel.flops),
        skippable_flops=at.of(kernel.skippable_flops),
        bytes_moved=at.of(kernel.bytes_moved),
        avoidable_bytes=at.of(kernel.avoidable_bytes),
        rows=at.of(kernel.rows),
        weights=at.of(kernel.weights),
        sequences=at.of(kernel.sequences),
        queries=at.of(kernel.queries),
    )


def _floats(column: Column) -> Floats:
    return column.astype(np.float64)


def times_by_point(predictions: Sequence[Sequence[StageTime]]) -> TimeColumns:
    """The times of points with stages that were predicted one by one."""

    def column(values: Iterator[float]) -> Floats:
        return np.array(list(values), dtype=np.float64)

    bounds = [[stage.lower_bound_s for stage in stages] for stages in predictions]
    expected = [[stage.wall.expected for stage in stages] for stages in predictions]
    limits = [max(stages, key=lambda stage: stage.wall.high).bound_by if stages else None for stages in predictions]
    bound_by = np.empty(len(predictions), dtype=object)
    bound_by[:] = limits
    return TimeColumns(
        lower_bound_s=_sums(bounds),
        low_s=column(sum(stage.wall.low for stage in stages) for stages in predictions),
        high_s=column(sum(stage.wall.high for stage in stages) for stages in predictions),
        expected_s=_sums(expected),
        device_low_s=column(sum(stage.device_time.low for stage in stages) for stages in predictions),
        device_high_s=column(sum(stage.device_time.high for stage in stages) for stages in predictions),
        host_low_s=column(sum(stage.host_time.low for stage in stages) for stages in predictions),
        host_high_s=column(sum(stage.host_time.high for stage in stages) for stages in predictions),
        bound_by=bound_by,
        untimed_ops=np.array([sum(sum(time.untimed.values()) for time in stages) for stages in predictions], np.int64),
        origin=AnsweredBy.POINT,
    )


def _sums(rows: Sequence[Sequence[float | None]]) -> Floats | None:
    known = [[value for value in row if value is not None] for row in rows]
    if any(len(some) < len(row) for some, row in zip(known, rows, strict=True)):
        return None
    return np.array([sum(row) for row in known], dtype=np.float64)


def joined(parts: Sequence[tuple[Column, TimeColumns]], size: int) -> TimeColumns:
    """Parts that hold the rows of different points, as one."""
    if len(parts) == 1:
        return parts[0][1]
    columns: dict[str, Column | None] = {}
    for name in (field.name for field in fields(TimeColumns) if field.name != "origin"):
        by_part = [(rows, getattr(part, name)) for rows, part in parts]
        if any(values is None for _, values in by_part):
            columns[name] = None
            continue
        column: Column = np.empty(size, dtype=by_part[0][1].dtype)
        for rows, values in by_part:
            column[rows] = values
        columns[name] = column
    origins = {part.origin for _, part in parts}
    origin = AnsweredBy.POINT if AnsweredBy.POINT in origins else AnsweredBy.FORM
    return TimeColumns(**columns, origin=origin)  # type: ignore[arg-type]


_NANO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkColumns:
    """The collectives of a stage: seconds on the links, one after the other, and how many have no known time."""

    low_s: NDArray[np.float64]
    high_s: NDArray[np.float64]
    untimed: NDArray[np.int64]


def links_of(
    counts: Mapping[KernelForms, int], at: Evaluation, cluster: Cluster | None, *, by_engine: bool
) -> LinkColumns:
    """All kernels of communication among these."""
    sums = np.zeros((2, at.size))
    untimed = np.zeros(at.size, dtype=np.int64)
    for kernel, count in counts.items():
        if kernel.kind is not KernelKind.COMMUNICATION:
            continue
        seconds = None if kernel.collective is None else _seconds(kernel.collective, at, cluster, by_engine=by_engine)
        if seconds is None:
            untimed += count
            continue
        sums += np.nan_to_num(seconds[:2]) * count
        untimed += np.where(np.isnan(seconds[0]), count, 0)
    return LinkColumns(low_s=sums[0], high_s=sums[1], untimed=untimed)


def least_seconds(collectives: Mapping[CollectiveForms, int], at: Evaluation, cluster: Cluster) -> NDArray[np.float64]:
    """The lower bound of the necessary collectives; a link that is not known adds nothing."""
    zero = np.zeros(at.size)
    return sum((_seconds(collective, at, cluster)[2] * count for collective, count in collectives.items()), zero)


def _seconds(
    collective: CollectiveForms, at: Evaluation, cluster: Cluster | None, *, by_engine: bool = False
) -> NDArray[np.float64]:
    """Rows of low, high and bound by point; where low and high are not known they are not a number."""
    payloads, place = np.unique(at.of(collective.payload), return_inverse=True)
    seconds = np.full((3, len(payloads)), np.nan)
    for column, payload in enumerate(payloads):
        time = time_on_links(collective.of(int(payload)), cluster, by_engine=by_engine)
        band = band_of(time)
        seconds[2, column] = (time.bound_ns or 0) * _NANO
        if band is not None:
            seconds[:2, column] = band.low, band.high
    return seconds[:, place]


def times_by_tables(
    kernels: KernelCounts,
    needs: Mapping[str, NecessaryForms],
    policy: str,
    points: Sequence[Point],
    at: Evaluation,
    rates: KernelTableRates,
    collectives: CollectiveCounts | None = None,
    steps: Mapping[str, Sequence[StagePieces]] | None = None,
) -> TimeColumns:
    """The times of all points from forms, as a prediction of each point gives them; `at` evaluates the same points.

    `steps` has the stages that an engine's rates know as a whole, at every point.
    """
    steps = steps or {}
    forms = {name: counts for name, counts in kernels.items() if name not in steps}
    pieces_at = [
        {name: [(kernel.at(point), count) for kernel, count in counts.items()] for name, counts in forms.items()}
        for point in points
    ]
    rates.learn(kernel for stages in pieces_at for pieces in stages.values() for kernel, _ in pieces)
    necessary = {name: _necessary(needs.get(name), policy, at) for name in kernels}

    def stage(name: str, place: int) -> StageTime:
        step = steps[name][place] if name in steps else None
        pieces = pieces_at[place][name] if step is None else step.pieces
        least = _collectives_at(collectives, name, points[place])
        return _stage_from_kernels(
            name, necessary[name][place], pieces, rates, least, None if step is None else step.expected_s
        )

    predictions = [[stage(name, place) for name in kernels] for place in range(len(points))]
    return replace(times_by_point(predictions), origin=AnsweredBy.FORM)


def _stage_from_kernels(
    name: str,
    necessary: NecessaryWork | None,
    pieces: Pieces,
    rates: KernelTableRates,
    collectives: Mapping[Collective, int],
    expected_s: float | None,
) -> StageTime:
    counts: dict[Piece, int] = {}
    for kernel, count in pieces:  # two forms may give one kernel at a point
        counts[kernel] = counts.get(kernel, 0) + count
    return stage_time(work_of(name, {}, necessary), tuple(counts.items()), rates, collectives, expected_s)


def _collectives_at(collectives: CollectiveCounts | None, name: str, point: Point) -> dict[Collective, int]:
    counts: dict[Collective, int] = {}
    for forms, count in ({} if collectives is None else collectives.get(name, {})).items():
        collective = forms.of(forms.payload.at(point))
        counts[collective] = counts.get(collective, 0) + count
    return counts


def _necessary(needs: NecessaryForms | None, policy: str, at: Evaluation) -> list[NecessaryWork | None]:
    """The necessary work of a stage at every point; its bytes are not told apart, since a bound needs their sum."""
    if needs is None:
        return [None] * at.size
    flops = {dtype: at.of(form).tolist() for dtype, form in needs.flops_by_dtype.items()}
    forwards = at.of(needs.forwards).tolist()
    read = [None] * at.size if needs.bytes is None else must_read_bytes(needs, policy, at).tolist()
    return [
        NecessaryWork(
            flops_by_dtype={dtype: column[place] for dtype, column in flops.items()},
            weight_bytes=read[place],
            expert_bytes=None,
            fewest_expert_bytes=None,
            cache_bytes=0,
            other_bytes=0,
            forwards=forwards[place],
        )
        for place in range(at.size)
    ]
