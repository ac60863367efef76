"""A predicted stage, corrected by measured times: the factor on every piece of it, and a band that says what is left.

A time of a whole stage gives one factor. A recording gives one for each kind of kernel as well, and corrects the time
of the device alone: what the host takes to launch stays predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llm_perf_opt.analyses.measured.measurement import Quantity
from llm_perf_opt.analyses.measured.remaining_error import Remaining
from llm_perf_opt.analyses.time.predict import StageTime
from llm_perf_opt.analyses.time.rates import Band, TimedPiece
from llm_perf_opt.ops.op import Kernel


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

    Widths are the high edge over the low one. None is unknown: a low edge of zero.
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
    """The one number that stands for a band: what its source expects, or the middle of its ends.

    The middle of two ends that differ by a factor is none where the low one is zero: then it is half of the high one.
    """
    if band.expected is not None:
        return band.expected
    return band.middle if band.low else band.high / 2


def width(band: Band) -> float | None:
    """High over low; None where low is zero."""
    return band.high / band.low if band.low else None


def families(stage: StageTime) -> dict[str, float]:
    """Seconds of the device by kind of kernel, before a correction; empty where a source times ops."""
    found: dict[str, float] = {}
    for piece in stage.pieces:
        if isinstance(piece.what, Kernel):
            kind = str(piece.what.kind)
            found[kind] = found.get(kind, 0.0) + centre(piece.each) * piece.count
    return found


def effective_factor(stage: StageTime, given: StageFactor) -> float:
    """The factor of the whole stage; with one for each kind of kernel, what makes it the sum of the corrected kinds.

    Kernels of other ranks run beside these: with communication the kinds count by their share alone.
    """
    seconds = families(stage) if given.by_family else {}
    if not sum(seconds.values()):
        return given.factor
    scaled = sum(spent * given.by_family.get(kind, given.factor) for kind, spent in seconds.items())
    return scaled / (centre(stage.device_time) if stage.communication is None else sum(seconds.values()))


def corrected_stage(stage: StageTime, given: StageFactor) -> StageTime:
    """The stage with its time multiplied; no edge goes below the lower bound."""
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
    """What runs beside the longer one: no edge of it beyond that one's."""
    expected = None if outer.expected is None else min(centre(band), outer.expected)
    return Band(min(band.low, outer.low), min(band.high, outer.high), expected)
