"""Sources of rates: how long a piece of work takes, and the origin of that time.

`predict` splits a stage into the pieces that a source can time, and adds up their durations. A source
whose figures come from a data sheet times kernels; a calibrated machine times ops, module calls and fresh memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.ops.table import ScatteredInputs
from llm_perf_opt.timing.lower_bound import BoundBy, LowerBound
from llm_perf_opt.timing.stage_work import StageWork


@dataclass(frozen=True, slots=True)
class Band:
    """Seconds from `low` to `high`, never one number. `expected` is None where a source gives the ends alone."""

    low: float
    high: float
    expected: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"a band runs from low to high, not from {self.low} to {self.high}")

    def __add__(self, other: Band) -> Band:
        has_both = self.expected is not None and other.expected is not None
        expected = (self.expected or 0.0) + (other.expected or 0.0) if has_both else None
        return Band(self.low + other.low, self.high + other.high, expected)

    def times(self, count: float) -> Band:
        """As long as `count` of it."""
        expected = None if self.expected is None else self.expected * count
        return Band(self.low * count, self.high * count, expected)

    def at_least(self, seconds: float) -> Band:
        """The band with nothing below `seconds`."""
        return self.slower(Band(seconds, seconds, seconds))

    def expected_at_least(self, seconds: float) -> Band:
        """The band, moved up until what is expected takes `seconds`; as it is where that takes longer, or is open."""
        if not self.expected or self.expected >= seconds:
            return self
        return self.times(seconds / self.expected)

    def slower(self, other: Band) -> Band:
        """Of two things that run side by side the one that takes longer, at both ends."""
        has_both = self.expected is not None and other.expected is not None
        expected = max(self.expected or 0.0, other.expected or 0.0) if has_both else None
        return Band(max(self.low, other.low), max(self.high, other.high), expected)

    def holds(self, seconds: float) -> bool:
        """Whether a time lies in the band."""
        return self.low <= seconds <= self.high

    def expected_in_the_middle(self) -> Band:
        """The band with its middle as what is expected."""
        return Band(self.low, self.high, self.middle)

    @property
    def middle(self) -> float:
        """Of two ends that differ by a factor, the value as far from one as from the other."""
        return math.sqrt(self.low * self.high)


NOTHING = Band(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class OpRun:
    """An op as a processor runs it, with the inputs whose rows do not lie together."""

    kind: OpKind
    scattered: ScatteredInputs = frozenset()


class Overhead(StrEnum):
    """Work of a stage that belongs to none of its ops."""

    MODULE_CALL = "module_call"
    FRESH_BYTE = "fresh_memory"  # one byte that the system hands out for the first time


Piece = Kernel | OpRun | Overhead
Pieces = Sequence[tuple[Piece, int]]  # and how often each runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTime:
    """Time given by one rate. `source` and `rate` say whose: the source, and which of its tables or fractions."""

    source: str
    rate: str
    band: Band
    bound_by: BoundBy | None = None  # None: the source does not say
    origin: str | None = None  # of one among several sources: a measured row, interpolated, ...; None: it is the only


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPiece:
    """A piece of a stage, how often it runs, and the times of one run; more than one where several rates apply."""

    what: Piece
    count: int
    times: tuple[RateTime, ...]

    @property
    def each(self) -> Band:
        """One run."""
        return total(time.band for time in self.times)


class RateSource(Protocol):
    """Where the durations of a prediction come from.

    `device` has the peaks from which a lower bound follows; None: no bound is known.
    """

    @property
    def name(self) -> str:
        """The origin of its times, in a word or two."""
        ...

    @property
    def title(self) -> str:
        """The machine that the times hold for."""
        ...

    @property
    def device(self) -> Device | None:
        """The device whose data sheet bounds every time."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """The devices and links among which the ranks of a plan run; None: one device alone."""
        ...

    @property
    def is_engine(self) -> bool:
        """Whether a serving engine runs the kernels, with its own for short all-reduces."""
        ...

    @property
    def engine(self) -> str | None:
        """Whose kernels they are; None: no engine's in particular."""
        ...

    def notes(self) -> Iterator[Note]:
        """What a reader must know of these rates."""
        ...

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, Pieces]:
        """Stage -> what this source times in it, and how often that runs."""
        ...

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        """Learn what a source can know of runs as a whole, from all their phases, before these are timed."""
        ...

    def expected_s(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, float]:
        """Stage -> what all its pieces take together, of stages that the source knows as a whole."""
        ...

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The times of one run of a piece; None: no rate of this source describes it."""
        ...

    def launch_time(self) -> Band:
        """What the host spends on one launch while the device works; nothing where durations include it."""
        ...

    def least_s(self, lower_bound: LowerBound) -> float:
        """What no end of a band lies below, for a stage with this lower bound."""
        ...

    def likely_s(self, lower_bound: LowerBound) -> float:
        """The shortest time that is to be expected of a stage with this lower bound."""
        ...

    def of_stage(self, kernels: Band) -> Band:
        """The band of a stage whose kernels add up to `kernels`: that, or as wide as whole runs were found to be."""
        ...


def total(bands: Iterable[Band]) -> Band:
    """One after the other."""
    result = NOTHING
    for band in bands:
        result += band
    return result
