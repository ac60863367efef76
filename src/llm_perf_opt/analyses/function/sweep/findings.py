"""What a sweep shows at a glance: one more sequence, one more token, where decode bends, and which batch fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.analyses.function.sweep.points import Pair, PhaseSweep, SweepPoint
from llm_perf_opt.analyses.serving.fit import RankMemory, fit_of
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.number_ranges import NumberRange

SEQUENCE, TOKEN = "sequence", "token of context"
_AT_ONCE = 16  # places of an interval that one step of a search looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCost:
    """What one more sequence, or one more token of context of every sequence, adds to a run of a phase.

    Differences of two points, the first of which is `batch` and `context`. None: not known at one of them.
    """

    what: str
    phase: str
    batch: int
    context: int
    flops: int | None
    bytes_moved: int | None
    cache_bytes: int | None
    needed_bytes: int | None
    low_s: float | None
    high_s: float | None
    expected_s: float | None


def added_costs(sweep: PhaseSweep, batches: NumberRange, contexts: NumberRange) -> Iterator[AddedCost]:
    """At the middle of the ranges; nothing along a range of one value."""
    batch, context = middle(batches), middle(contexts)
    first, longer, wider = sweep.at([(batch, context), (batch, context + 1), (batch + 1, context)])
    if batches.low < batches.high:
        yield _added(SEQUENCE, first, wider)
    if contexts.low < contexts.high:
        yield _added(TOKEN, first, longer)


def middle(values: NumberRange) -> int:
    """The value at which differences are taken: below the high end, so that one more is still in the range."""
    return values.values[(len(values.values) - 1) // 2]


def shown_values(values: NumberRange) -> tuple[int, ...]:
    """Those that a chart has lines for: the ends and the middle."""
    return tuple(sorted({values.low, middle(values), values.high}))


def _added(what: str, before: SweepPoint, after: SweepPoint) -> AddedCost:
    def more(name: str) -> int | None:
        one, other = getattr(before, name), getattr(after, name)
        return None if one is None or other is None else other - one

    return AddedCost(
        what=what,
        phase=before.phase,
        batch=before.batch,
        context=before.context,
        flops=more("flops"),
        bytes_moved=more("bytes_moved"),
        cache_bytes=more("cache_bytes"),
        needed_bytes=more("needed_bytes"),
        low_s=more("low_s"),
        high_s=more("high_s"),
        expected_s=more("expected_s"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """From `batch` on something else takes most of the time; up to `last_batch` it was `before`.

    The two are neighbours where every batch between could be asked.
    """

    phase: str
    context: int
    last_batch: int
    batch: int
    before: str
    bound_by: str


def bends(sweep: PhaseSweep, batches: NumberRange, context: int) -> Iterator[Bend]:
    """Along the batch at one context, in order; nothing where no time is known."""
    known = {point.batch: point.bound_by for point in sweep.at([(batch, context) for batch in batches.values])}
    for low, high in pairwise(batches.values):
        before, after = known[low], known[high]
        if before is None or after is None or before == after:
            continue
        if sweep.is_by_form:
            found = _first(sweep, context, low, high, before)
            low, high, after = found[0], found[1], found[2] or after
        yield Bend(phase=sweep.phase, context=context, last_batch=low, batch=high, before=before, bound_by=after)


def _first(sweep: PhaseSweep, context: int, low: int, high: int, before: str) -> tuple[int, int, str | None]:
    """The neighbours between which `before` ends first, as far as a search sees it."""
    after: str | None = None
    while high - low > 1:
        places = _between(low, high)
        for point in sweep.at([(batch, context) for batch in places]):
            if point.bound_by != before:
                high, after = point.batch, point.bound_by
                break
            low = point.batch
    return low, high, after


def _between(low: int, high: int) -> list[int]:
    """At most so many places inside an interval, in order."""
    inside = range(low + 1, high)
    return list(inside[:: max(1, -(-len(inside) // _AT_ONCE))]) if len(inside) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """How many sequences of a context a device holds.

    `batch` is the largest of the range that fits as traced, 0 where not even the smallest does; `next_batch` the
    smallest that does not, None where the whole range fits. `served` is what the memory of a serving engine allows,
    whatever the range. None: not known.
    """

    context: int
    batch: int | None
    next_batch: int | None
    served: int | None


def largest_batch(
    sweeps: Sequence[PhaseSweep], batches: NumberRange, context: int, device: Device, serving: RankMemory | None
) -> LargestBatch:
    """The largest batch for which every phase fits."""
    served = None if serving is None else fit_of(serving, device, batch=1, context=context + 1).largest_batch
    low, high = 0, batches.high + 1
    places = list(batches.values)
    while places:
        fits = _fits(sweeps, [(batch, context) for batch in places], device)
        if None in fits:
            return LargestBatch(context=context, batch=None, next_batch=None, served=served)
        fitting = [batch for batch, is_fitting in zip(places, fits, strict=True) if is_fitting]
        low = max((low, *fitting))
        high = min((high, *(batch for batch in places if batch not in fitting)))
        is_open = low > 0 and high <= batches.high and high - low > 1
        places = _between(low, high) if is_open and all(sweep.is_by_form for sweep in sweeps) else []
    return LargestBatch(context=context, batch=low, next_batch=None if high > batches.high else high, served=served)


def _fits(sweeps: Sequence[PhaseSweep], pairs: Sequence[Pair], device: Device) -> list[bool | None]:
    needs = [[point.needed_bytes for point in sweep.at(pairs, timed=False)] for sweep in sweeps]
    return [
        None if None in phases else max(size for size in phases if size is not None) <= device.memory_bytes
        for phases in zip(*needs, strict=True)
    ]
