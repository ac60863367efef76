"""A predicted stage, corrected by measured times: the factor on every piece of it, and a band that says what is left.

A time of a whole stage gives one factor. A recording gives one for each kind of kernel as well, and corrects the time
of the device alone: what the host takes to launch stays predicted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import pairwise

from llm_perf_opt.core.reading import FileKind, as_record, parse_toml
from llm_perf_opt.measurements.measurement import Quantity
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.predict import StageTime
from llm_perf_opt.timing.rates import Band, TimedPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFactor:
    """What a stage is multiplied by. `remaining` of None: the band keeps its width, since its width is not known."""

    factor: float
    remaining: Remaining | None
    is_device_time: bool = False
    by_family: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCorrection:
    """One stage before and after. `factor` is what its time was multiplied by, kinds of kernels weighed by their time.

    Widths are high over low. None is unknown: a low of zero.
    """

    phase: str
    stage: str
    by: Quantity
    measurements: int
    factor: float
    before_s: float
    after_s: float
    low_s: float
    high_s: float
    width_before: float | None
    width_after: float | None
    by_family: Mapping[str, float]
    is_same_point: bool
    why: str  # the band after is as wide as it is


def centre(band: Band) -> float:
    """The one number for a band: what its source expects, or the middle of low and high.

    The middle is the geometric mean; where low is zero it is half of high.
    """
    if band.expected is not None:
        return band.expected
    return band.middle if band.low else band.high / 2


def width(band: Band) -> float | None:
    """High over low; None where low is zero."""
    return band.high / band.low if band.low else None


def families(stage: StageTime) -> dict[str, float]:
    """Seconds of the device by kind of kernel, before a correction; empty where a source times ops."""
    seconds: dict[str, float] = {}
    for piece in stage.pieces:
        if isinstance(piece.what, Kernel):
            kind = str(piece.what.kind)
            seconds[kind] = seconds.get(kind, 0.0) + centre(piece.each) * piece.count
    return seconds


def effective_factor(stage: StageTime, given: StageFactor) -> float:
    """The factor of the whole stage; with one for each kind of kernel, what makes it the sum of the corrected kinds.

    Kernels of other ranks run next to these: with communication the kinds count by their share alone.
    """
    seconds = families(stage) if given.by_family else {}
    if not sum(seconds.values()):
        return given.factor
    scaled = sum(spent * given.by_family.get(kind, given.factor) for kind, spent in seconds.items())
    return scaled / (centre(stage.device_time) if stage.communication is None else sum(seconds.values()))


def corrected_stage(stage: StageTime, given: StageFactor) -> StageTime:
    """The stage with its time multiplied; neither low nor high goes below the lower bound."""
    factor = effective_factor(stage, given)
    pieces = tuple(_scaled(piece, given) for piece in stage.pieces)
    least = stage.lower_bound_s or 0.0
    busy = corrected_band(stage.busy_time, factor, given.remaining, least)
    if given.is_device_time:
        device = corrected_band(stage.device_time, factor, given.remaining, least)
        return replace(stage, pieces=pieces, device_time=device, busy_time=busy)
    wall = corrected_band(stage.wall, factor, given.remaining, least)
    device, host = stage.device_time.times(factor), stage.host_time.times(factor)
    if stage.host_time.middle > stage.device_time.middle:
        return replace(stage, pieces=pieces, device_time=_within(device, wall), host_time=wall, busy_time=busy)
    return replace(stage, pieces=pieces, device_time=wall, host_time=_within(host, wall), busy_time=busy)


def corrected_band(band: Band, factor: float, remaining: Remaining | None, least_s: float) -> Band:
    """A band around the corrected time, or as wide as before where nothing says how wide it is."""
    middle = centre(band) * factor
    if remaining is None:
        return Band(band.low * factor, band.high * factor, middle).at_least(least_s)
    return Band(middle * remaining.low, middle * remaining.high, middle).at_least(least_s)


def _scaled(piece: TimedPiece, given: StageFactor) -> TimedPiece:
    kind = str(piece.what.kind) if isinstance(piece.what, Kernel) else ""
    factor = given.by_family.get(kind, given.factor)
    return replace(piece, times=tuple(replace(time, band=time.band.times(factor)) for time in piece.times))


def _within(band: Band, outer: Band) -> Band:
    """The part that runs next to the longer one, never longer than it at either end."""
    expected = None if outer.expected is None else min(centre(band), outer.expected)
    return Band(min(band.low, outer.low), min(band.high, outer.high), expected)


# Measured over predicted time as a factor: one number, or a line through points of different length.
#
# With points of different predicted time the measured time is taken as a power of the predicted one, a straight line
# between logarithms. Beyond the measured ends the factor stays what it is there.

_SAME = 1.05  # predicted times within this ratio are one point, measured repeatedly


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoint:
    """A measured time with its repeats, and what was predicted for the same work before any correction."""

    samples_s: tuple[float, ...]
    predicted_s: float

    def __post_init__(self) -> None:
        if not self.predicted_s > 0 or not self.samples_s or min(self.samples_s) <= 0:
            raise ValueError("a factor needs times above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The factor at every predicted time. `repeats` is the largest number of measurements of one point.

    `scatter_low` and `scatter_high` are the fastest and the slowest repeat, as shares of the one in the middle.
    """

    points: int  # with different predicted times
    measurements: int
    repeats: int
    scatter_low: float
    scatter_high: float
    _log_ends: tuple[float, float]  # logarithms of the shortest and the longest predicted time
    _log_factors: tuple[float, float]  # there

    def factor_at(self, predicted_s: float) -> float:
        """By what a prediction of this length is multiplied."""
        (start, end), (first, last) = self._log_ends, self._log_factors
        if end <= start:
            return math.exp(first)
        share = min(1.0, max(0.0, (math.log(predicted_s) - start) / (end - start)))
        return math.exp(first + share * (last - first))


def fitted(points: Sequence[FitPoint]) -> Fit:
    """The factor that the points give. Points of nearly the same predicted time count as repeats of one."""
    groups = _groups(sorted(points, key=lambda point: point.predicted_s))
    logs = [[math.log(sample / point.predicted_s) for point in group for sample in point.samples_s] for group in groups]
    middles = [statistics.median(log) for log in logs]
    lengths = [sum(math.log(point.predicted_s) for point in group) / len(group) for group in groups]
    spreads = [value - middle for factors, middle in zip(logs, middles, strict=True) for value in factors]
    return Fit(
        points=len(groups),
        measurements=len(points),
        repeats=max(map(len, logs)),
        scatter_low=math.exp(min(spreads)),
        scatter_high=math.exp(max(spreads)),
        _log_ends=(lengths[0], lengths[-1]),
        _log_factors=_line(lengths, middles),
    )


def _groups(points: Sequence[FitPoint]) -> list[list[FitPoint]]:
    groups = [[points[0]]]
    for before, point in pairwise(points):
        if point.predicted_s <= before.predicted_s * _SAME:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """The straight line of least squares, by its values at both ends."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return mean_y + slope * (xs[0] - mean_x), mean_y + slope * (xs[-1] - mean_x)


_ENOUGH_REPEATS = 9  # four of five further ones are between the fastest and the slowest
_REST_FILE = FileKind(name="table of remaining errors", fix="install llm-perf-opt again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Quantiles of measured over predicted time after a correction: 10 % and 90 %, and the median size of the error."""

    low: float
    high: float
    median_error: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.low <= 1 <= self.high:
            raise ValueError(f"the quantiles enclose 1, and {self.low} to {self.high} do not")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOf:
    """One kind of time, by how it was corrected."""

    same_point: Rest
    one_point: Rest
    two_points: Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Rests:
    """The table that comes with the package."""

    ttft: RestOf
    tpot: RestOf
    stage: RestOf

    def of(self, quantity: Quantity) -> RestOf:
        """The errors of one kind of time."""
        return {Quantity.TTFT: self.ttft, Quantity.TPOT: self.tpot, Quantity.STAGE: self.stage}[quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Low and high around a corrected time, as shares of it, and why they are there."""

    low: float
    high: float
    why: str


@cache
def rests() -> Rests:
    """What `rest.toml` says."""
    document = parse_toml(resources.files(__package__).joinpath("rest.toml").read_bytes(), _REST_FILE)
    return as_record(document, Rests, _REST_FILE)


def remaining(quantity: Quantity, fit: Fit, *, is_same_point: bool) -> Remaining:
    """The band after a correction by `fit`.

    The workload that was measured has the scatter of its repeats. With too few of them it is at least the scatter of
    repeated records: between the fastest and the slowest of n the next one falls in (n - 1) of n + 1 cases.
    Another workload has in addition what a carried correction leaves; the two are independent, so their logarithms add
    as squares.
    """
    known = rests().of(quantity)
    if is_same_point and fit.repeats >= _ENOUGH_REPEATS:
        return Remaining(low=fit.scatter_low, high=fit.scatter_high, why=f"fastest to slowest of {fit.repeats} repeats")
    if is_same_point:
        rest = known.same_point
        return Remaining(
            low=min(rest.low, fit.scatter_low),
            high=max(rest.high, fit.scatter_high),
            why="repeated records of others differ by as much"
            + (f", or the {fit.repeats} repeats if they differ more" if fit.repeats > 1 else ""),
        )
    rest, name = (known.one_point, "one workload") if fit.points == 1 else (known.two_points, "two workloads")
    return Remaining(
        low=math.exp(-math.hypot(math.log(rest.low), math.log(fit.scatter_low))),
        high=math.exp(math.hypot(math.log(rest.high), math.log(fit.scatter_high))),
        why=f"a correction by {name} leaves as much error in records of others"
        + (f", and the {fit.repeats} repeats differ" if fit.repeats > 1 else ""),
    )
