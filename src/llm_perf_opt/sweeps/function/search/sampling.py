"""Points of a region: those to fit a program on, its corners, and random ones.

A region is a range for each variable. Its stride leaves out lengths: where code cuts a sequence into chunks, a length
without a remainder is often another program than its neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.sweeps.function.figures.costs import Region
from llm_perf_opt.sweeps.function.fitting import BATCH
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.function.program.alignment import Parting
from llm_perf_opt.sweeps.function.program.program import NoRule

# How far samples are above the low end of a region, wide regions first: both odd and even lengths, far apart.
LENGTH_OFFSETS = (
    (3, 130, 517, 1032, 1547),
    (3, 42, 97, 180, 251),
    (3, 14, 29, 48, 61),
    (1, 4, 9, 11, 14),
    (0, 1, 2, 3),
)
CHUNK_OFFSETS = (0, 1, 3, 4, 6)
_BATCH_OFFSETS = (0, 1, 3, 4)
# Which length and which batch each sample has. The first few often do; the others are taken where no rule was found.
_Places = tuple[tuple[tuple[int, int], ...], int]
_ALONG_LENGTH: _Places = ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0)), 3
_ALONG_BATCH: _Places = ((0, 0), (0, 1), (0, 2), (0, 3)), 3
_IN_BOX: _Places = ((0, 0), (1, 2), (2, 0), (0, 1), (3, 3), (4, 1)), 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """The values of a variable that are multiples of a chunk, or all but those."""

    variable: str
    chunk: int
    is_multiple: bool

    def holds(self, value: int) -> bool:
        """Whether a value is one of them."""
        return (value % self.chunk == 0) == self.is_multiple

    def inner(self, low: int, high: int) -> tuple[int, int]:
        """The lowest and the highest of them in a range; the first is larger where there is none."""
        if self.is_multiple:
            return -(-low // self.chunk) * self.chunk, high // self.chunk * self.chunk
        return low + (low % self.chunk == 0), high - (high % self.chunk == 0)

    def __str__(self) -> str:
        return f"{'' if self.is_multiple else 'not '}a multiple of {self.chunk:,}"


def holds(region: Region, stride: Stride | None, point: Point) -> bool:
    """Whether a point is in a region."""
    inside = all(low <= point[name] <= high for name, (low, high) in region.items())
    return inside and (stride is None or stride.holds(point[stride.variable]))


def inner(region: Region, stride: Stride | None) -> Region:
    """The range of each variable from its lowest to its highest value in a region."""
    return region if stride is None else {**region, stride.variable: stride.inner(*region[stride.variable])}


def corners(region: Region, stride: Stride | None = None) -> Iterator[Point]:
    """Every combination of lowest and highest values."""
    for values in product(*(dict.fromkeys(ends) for ends in inner(region, stride).values())):
        yield dict(zip(region, values, strict=True))


def random_point(region: Region, stride: Stride | None, rng: random.Random) -> dict[str, int]:
    """Any point of a region."""
    while True:
        point = {name: rng.randint(*limits) for name, limits in inner(region, stride).items()}
        if stride is not None and stride.is_multiple:
            point[stride.variable] -= point[stride.variable] % stride.chunk
        if holds(region, stride, point):
            return point


def at_chunk_end(region: Region, stride: Stride | None, point: Point, length: str, chunks: Sequence[int]) -> Point:
    """A point moved to the end of its chunk, where sizes that count chunks of other lengths differ most."""
    low, high = region[length]
    chunk = max((candidate for candidate in chunks if candidate < high - low), default=1)
    moved = {**point, length: point[length] // chunk * chunk + chunk - 1}
    return moved if holds(region, stride, moved) else point


def size_of(region: Region) -> int:
    """How many points it has, all lengths counted."""
    return prod(high - low + 1 for low, high in region.values())


def samples_of(region: Region, length: str, lengths: Sequence[int]) -> tuple[list[Point], list[Point]]:
    """Few points of a region at which batch and length do not move together, and these with more."""
    low, high = region.get(BATCH, (1, 1))
    batches = [low + offset for offset in _BATCH_OFFSETS if low + offset <= high]
    places, few = _ALONG_LENGTH if len(batches) == 1 else _ALONG_BATCH if len(lengths) == 1 else _IN_BOX
    chosen = [(lengths[row % len(lengths)], batches[column % len(batches)]) for row, column in places]
    points: list[Point] = [
        {length: tokens, **({BATCH: batch} if BATCH in region else {})} for tokens, batch in dict.fromkeys(chosen)
    ]
    return points[:few], points


def batch_ranges(domain: Region) -> Iterator[Mapping[str, tuple[int, int]]]:
    """A batch of one for itself, and all others."""
    if BATCH not in domain:
        yield {}
        return
    low, high = domain[BATCH]
    if low == 1:
        yield {BATCH: (1, 1)}
    if high > 1:
        yield {BATCH: (max(low, 2), high)}


FAILED = "failed"


class NoTracesLeft(Exception):
    """The budget of traces is spent."""


def _never(point: Point) -> bool:
    return False


@dataclass(eq=False, kw_only=True)
class Traces:
    """Graphs of one phase by point, and not more than the budget allows.

    One trace gives the graphs of all phases: a point that another phase asked for `is_traced` and costs nothing.
    A point with a trace that fails has no program, for the reason in the error; others are not affected.
    """

    trace: Callable[[Point], CallGraph]
    budget: int
    is_traced: Callable[[Point], bool] = _never
    count: int = field(default=0, init=False)  # of the budget, spent
    _known: dict[tuple[tuple[str, int], ...], CallGraph | Parting] = field(default_factory=dict, init=False)

    def at(self, point: Point) -> CallGraph:
        """The graph of a point; `NoRule` where its trace failed."""
        key = tuple(sorted(point.items()))
        if key not in self._known:
            if not self.is_traced(point):
                if self.count >= self.budget:
                    raise NoTracesLeft
                self.count += 1
            try:
                self._known[key] = self.trace(point)
            except PerfOptError as error:
                self._known[key] = Parting(what=FAILED, op=None, text=f"the trace failed: {error.what} {error.why}")
        known = self._known[key]
        if isinstance(known, Parting):
            raise NoRule(known)
        return known

    @property
    def points(self) -> list[Point]:
        """The points that were asked for."""
        return [dict(key) for key in self._known]
