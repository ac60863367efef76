"""How wide a corrected prediction is: the scatter of what was measured, and what a correction leaves in the field."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from llm_perf_opt.analyses.measured.fit import Fit
from llm_perf_opt.analyses.measured.measurement import Quantity
from llm_perf_opt.core.reading import FileKind, as_record, parse_toml

_ENOUGH_REPEATS = 9  # four of five further ones lie between the fastest and the slowest
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
    """The ends of the band around a corrected time, as shares of it, and why they are there."""

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

    The workload that was measured has the scatter of its repeats. Where there are too few to tell, at least that of
    repeated records: between the fastest and the slowest of n the next one lies in (n - 1) of n + 1 cases.
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
            why="what repeated records of the field differ by"
            + (f", or the scatter of {fit.repeats} repeats if that is more" if fit.repeats > 1 else ""),
        )
    rest, name = (known.one_point, "one workload") if fit.points == 1 else (known.two_points, "two workloads")
    return Remaining(
        low=math.exp(-math.hypot(math.log(rest.low), math.log(fit.scatter_low))),
        high=math.exp(math.hypot(math.log(rest.high), math.log(fit.scatter_high))),
        why=f"what a correction by {name} leaves in the field"
        + (f", and the scatter of {fit.repeats} repeats" if fit.repeats > 1 else ""),
    )
