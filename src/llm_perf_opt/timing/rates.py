"""Sources of rates: how long a piece of work takes, and the origin of that time.

`predict` splits a stage into the pieces that a source can time, and adds up their durations. A source
with the figures of a data sheet times kernels; a calibrated machine times ops, module calls and fresh memory.
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
    """Seconds from `low` to `high`, never one number. `expected` is None where a source gives low and high alone."""

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
        """Of two things that run side by side the one that takes longer, in the low and in the high estimate."""
        has_both = self.expected is not None and other.expected is not None
        expected = max(self.expected or 0.0, other.expected or 0.0) if has_both else None
        return Band(max(self.low, other.low), max(self.high, other.high), expected)

    def holds(self, seconds: float) -> bool:
        """Whether a time is in the band."""
        return self.low <= seconds <= self.high

    def expected_in_the_middle(self) -> Band:
        """The band with its middle as what is expected."""
        return Band(self.low, self.high, self.middle)

    @property
    def middle(self) -> float:
        """The geometric mean of low and high."""
        return math.sqrt(self.low * self.high)


NOTHING = Band(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class OpRun:
    """An op as a processor runs it, with the inputs that have rows apart from each other."""

    kind: OpKind
    scattered: ScatteredInputs = frozenset()


class Overhead(StrEnum):
    """Work of a stage that belongs to none of its ops."""

    MODULE_CALL = "module_call"
    FRESH_BYTE = "fresh_memory"  # one byte that the system hands out for the first time


Piece = Kernel | OpRun | Overhead
Pieces = Sequence[tuple[Piece, int]]  # and how often each runs


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePieces:
    """What a source times in a stage; `expected_s` is the time of all pieces where it knows the stage as a whole."""

    pieces: Pieces
    expected_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTime:
    """Time given by one rate: `source` names the source, `rate` which of its tables or fractions."""

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
        """The device with the data sheet that bounds every time."""
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
        """The engine that the kernels belong to; None: no engine in particular."""
        ...

    def notes(self) -> Iterator[Note]:
        """What a reader must know of these rates."""
        ...

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """Stage -> what this source times in it, and how often that runs."""
        ...

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        """Learn what a source can know of runs as a whole, from all their phases, before these are timed."""
        ...

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The times of one run of a piece; None: no rate of this source describes it."""
        ...

    def launch_time(self) -> Band:
        """What the host spends on one launch while the device works; nothing where durations include it."""
        ...

    def least_s(self, lower_bound: LowerBound) -> float:
        """What no end of a band is below, for a stage with this lower bound."""
        ...

    def likely_s(self, lower_bound: LowerBound) -> float:
        """The shortest time that is to be expected of a stage with this lower bound."""
        ...

    def of_stage(self, kernels: Band) -> Band:
        """The band of a stage from the sum of its kernels: `kernels`, or as wide as measured runs differ."""
        ...


class TimesPieces:
    """A source that times pieces one by one, of no engine in particular, and knows no run as a whole."""

    __slots__ = ()

    @property
    def engine(self) -> str | None:
        """No engine in particular."""
        return None

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        """Pieces are timed as they come: nothing is learnt of a run."""

    def of_stage(self, kernels: Band) -> Band:
        """Its pieces and nothing else."""
        return kernels


def total(bands: Iterable[Band]) -> Band:
    """One after the other."""
    result = NOTHING
    for band in bands:
        result += band
    return result
