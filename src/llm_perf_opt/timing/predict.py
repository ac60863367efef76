"""How long each stage of a trace takes: its lower bound, a band, and where every time comes from.

A bound from a data sheet holds for every implementation; one from measured rates is as good as the measurement.

The band of several kernels one after the other is narrower than the sum of their bands, as errors of single kernels
partly cancel. A table is wrong for a kernel by a part that holds for every kernel of its kind and by a part of its own.
The first adds up, the second adds in squares. With `d` the distance from the expected time of a kernel to its low or
high, kernels of one kind have `(share * sum(d)) ** 2 + (1 - share ** 2) * sum(d ** 2)`, and kinds add in squares. A
kernel that runs n times is wrong n times in the same way. What a roofline times has no expected error, only low and
high: they add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.collective_time import Communication, communication_of, overlapped
from llm_perf_opt.timing.eager_time import RECORDED
from llm_perf_opt.timing.lower_bound import BoundBy, LowerBound, bounds_of
from llm_perf_opt.timing.rank_bound import communication_s, least_collectives
from llm_perf_opt.timing.rates import (
    NOTHING,
    Band,
    OpRun,
    Overhead,
    Piece,
    Pieces,
    RateSource,
    RateTime,
    TimedPiece,
    total,
)
from llm_perf_opt.timing.stage_work import StageWork, stage_works

SYSTEMATIC_SHARE = 0.6  # of the distance to low or high: what kernels of one kind have in common


@dataclass(frozen=True, slots=True)
class BandOfKind:
    """The time of a kernel and all its runs; `kind` None: low and high without a known error between them."""

    kind: str | None
    band: Band


def combined(bands: Iterable[BandOfKind]) -> Band:
    """One after the other: expected times add up, low and high follow the rule of this file."""
    certain, kinds = NOTHING, dict[str, list[Band]]()
    for band in bands:
        if band.kind is None or band.band.expected is None:
            certain += band.band
        else:
            kinds.setdefault(band.kind, []).append(band.band)
    parts = [band for alike in kinds.values() for band in alike]
    expected = sum(band.expected or 0.0 for band in parts)
    below = math.hypot(*(_distance([(band.expected or 0.0) - band.low for band in alike]) for alike in kinds.values()))
    above = math.hypot(*(_distance([band.high - (band.expected or 0.0) for band in alike]) for alike in kinds.values()))
    least = sum(band.low for band in parts)
    return certain + Band(max(least, expected - below), expected + above, expected)


def _distance(distances: list[float]) -> float:
    common = SYSTEMATIC_SHARE * sum(distances)
    return math.sqrt(common**2 + (1 - SYSTEMATIC_SHARE**2) * sum(distance**2 for distance in distances))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One stage by one source of rates.

    `lower_bound` is necessary work at the device's full rates, with as many experts as the routing policy touches;
    `fewest_experts_bound` the same with the fewest that any routing can touch. None: what is necessary is not known, or
    the source has no data sheet. `device_time` is the sum of all pieces; its low hides all communication
    behind other work; `busy_time` is without communication, `host_time` how long the host takes to launch them, `wall`
    the slower of device and host. No time is below the lower bound. `untimed` ops are in no sum.
    """

    work: StageWork
    lower_bound: LowerBound | None
    fewest_experts_bound: LowerBound | None
    pieces: tuple[TimedPiece, ...]
    device_time: Band
    host_time: Band
    bound_by: BoundBy | None  # None: the source does not say
    untimed: Mapping[str, int]  # op name -> how often it ran
    busy_time: Band
    is_engine: bool = False  # pieces are an engine's kernels, not the code as written
    communication: Communication | None = None  # None: the stage has no collectives
    is_step: bool = False  # an engine's step, which its source knows as a whole
    raised_from_s: float | None = None  # the sum of its kernels, where less than its bytes can take was expected

    @property
    def name(self) -> str:
        """The stage."""
        return self.work.name

    @property
    def lower_bound_s(self) -> float | None:
        """The lower bound in seconds; None: not known."""
        return None if self.lower_bound is None else self.lower_bound.seconds

    @property
    def wall(self) -> Band:
        """From the first launch to the last result."""
        return self.device_time.slower(self.host_time)

    @property
    def exposed(self) -> Band | None:
        """Communication that nothing hides; None: the stage has none, or its time is not known."""
        return None if self.communication is None else self.communication.exposed(self.busy_time)

    @property
    def launches(self) -> int | None:
        """Kernels of the code as written, whoever runs it; None: the source times ops."""
        return self.work.launches if self.is_engine else self._kernels

    @property
    def engine_kernels(self) -> int | None:
        """Kernels that an engine launches in place of the code as written; None: no engine runs them."""
        return self._kernels if self.is_engine else None

    @property
    def _kernels(self) -> int | None:
        counts = [piece.count for piece in self.pieces if isinstance(piece.what, Kernel)]
        return sum(counts) if counts else None

    @property
    def fresh_bytes(self) -> int:
        """What the system hands out while the stage runs, where the source times that."""
        return sum(piece.count for piece in self.pieces if piece.what is Overhead.FRESH_BYTE)

    @property
    def by_rate(self) -> dict[tuple[str, str], Band]:
        """Source and rate -> the time that they gave, the longest first."""
        bands: dict[tuple[str, str], Band] = {}
        for piece in self.pieces:
            for time in piece.times:
                band, origin = time.band.times(piece.count), (time.source, time.rate)
                bands[origin] = bands[origin] + band if origin in bands else band
        return dict(sorted(bands.items(), key=lambda item: -(item[1].expected or item[1].high)))

    @property
    def by_origin(self) -> dict[str, float]:
        """Origin -> its share of the expected time of all pieces, the largest first; empty: the source keeps none."""
        sums: dict[str, float] = {}
        for piece in self.pieces:
            for time in piece.times:
                if time.origin is not None:
                    sums[time.origin] = sums.get(time.origin, 0.0) + (time.band.expected or 0.0) * piece.count
        total_s = sum(sums.values())
        return {
            origin: seconds / total_s for origin, seconds in sorted(sums.items(), key=lambda pair: -pair[1]) if total_s
        }


def predict(graph: CallGraph, rates: RateSource) -> tuple[StageTime, ...]:
    """Every stage of one phase in which something runs that takes time, in order."""
    works = stage_works(graph, with_necessary=rates.device is not None)
    pieces_of = rates.pieces(graph, works)
    least = {} if rates.cluster is None else least_collectives(graph)
    return tuple(
        stage_time(work, stage.pieces, rates, least.get(work.name), stage.expected_s)
        for work in works
        if (stage := pieces_of[work.name]).pieces
    )


def stage_time(
    work: StageWork,
    pieces: Pieces,
    rates: RateSource,
    collectives: Mapping[Collective, int] | None = None,
    expected_s: float | None = None,
) -> StageTime:
    """One stage, done in these pieces; `collectives` are the ones that no engine can do without.

    `expected_s` is the time of all pieces together where the source knows the stage as a whole.
    """
    timed, untimed = _timed(pieces, rates)
    bound, fewest = bounds_of(work.necessary, rates.device)
    kernels, links = (_sum(timed, on_links=on_links) for on_links in (False, True))
    if expected_s is not None:
        share = expected_s / ((kernels.expected or 0.0) + (links.expected or 0.0))
        kernels, links = kernels.times(share), links.times(share)
    # A step that is known as a whole has kernels that each keep to the bandwidth: it is the same in every verb.
    likely = kernels if bound is None or expected_s is not None else kernels.expected_at_least(rates.likely_s(bound))
    busy, links = rates.of_stage(likely), rates.of_stage(links)
    if bound is not None and expected_s is None:
        busy = busy.at_least(rates.least_s(bound))
    communication = communication_of(_kernels(pieces), rates.cluster, by_engine=rates.is_engine)
    if communication is not None and communication.band is not None:
        communication = replace(communication, band=links)
    if collectives and rates.cluster is not None:
        least_s = communication_s(collectives, rates.cluster)
        bound, fewest = (
            None if before is None else replace(before, communication_s=least_s) for before in (bound, fewest)
        )
    device = busy if communication is None else overlapped(busy, links)
    if expected_s is not None and busy.expected == kernels.expected:
        device = replace(device, expected=expected_s)  # to the last digit, which a sum of parts would round
    host = rates.launch_time().times(sum(count for _, count in pieces))
    return StageTime(
        work=work,
        lower_bound=bound,
        fewest_experts_bound=fewest,
        pieces=timed,
        device_time=device,
        host_time=host,
        bound_by=_bound_by(timed, device, host, is_engine=rates.is_engine),
        untimed=untimed,
        busy_time=busy,
        is_engine=rates.is_engine,
        communication=communication,
        is_step=expected_s is not None,
        raised_from_s=None if likely is kernels else kernels.expected,
    )


def _sum(timed: Sequence[TimedPiece], *, on_links: bool) -> Band:
    """One after the other. Errors of measured kernels partly cancel; low and high of other times add up."""
    pieces = [piece for piece in timed if _is_communication(piece.what) is on_links]
    if not any(time.origin for piece in pieces for time in piece.times):
        return total(piece.each.times(piece.count) for piece in pieces)
    return combined(
        BandOfKind(_shared_error(time), time.band.times(piece.count)) for piece in pieces for time in piece.times
    )


def _shared_error(time: RateTime) -> str | None:
    """What times that are wrong together have in common: a table and an origin, or all recordings of one device."""
    if time.origin is None or time.origin == RECORDED:
        return time.origin
    return f"{time.source}, {time.rate}, {time.origin}"


def _is_communication(piece: Piece) -> bool:
    return isinstance(piece, Kernel) and piece.kind is KernelKind.COMMUNICATION


def _kernels(pieces: Pieces) -> dict[Kernel, int]:
    return {piece: count for piece, count in pieces if isinstance(piece, Kernel)}


def _timed(pieces: Pieces, rates: RateSource) -> tuple[tuple[TimedPiece, ...], dict[str, int]]:
    timed: list[TimedPiece] = []
    untimed: Counter[str] = Counter()
    for piece, count in pieces:
        times = rates.duration(piece)
        if times is not None:
            timed.append(TimedPiece(what=piece, count=count, times=times))
        elif isinstance(piece, OpRun):
            untimed[piece.kind.name] += count
        else:
            untimed[str(piece.kind if isinstance(piece, Kernel) else piece)] += count
    return tuple(timed), dict(untimed)


def _bound_by(timed: Sequence[TimedPiece], busy: Band, host: Band, *, is_engine: bool) -> BoundBy | None:
    """What takes most of the high estimate; kernel launches where the host takes longer than the device.

    An engine captures its launches: what is left of them is the time in which the device starts each kernel.
    """
    if host.middle > busy.middle:
        return BoundBy.LAUNCHES
    shares: dict[BoundBy, float] = {}
    for piece in timed:
        for time in piece.times:
            if time.bound_by is not None:
                shares[time.bound_by] = shares.get(time.bound_by, 0.0) + time.band.high * piece.count
    if not shares:
        return None
    largest = max(BoundBy, key=lambda bound: shares.get(bound, 0.0))
    return BoundBy.KERNEL_STARTS if is_engine and largest is BoundBy.LAUNCHES else largest


def total_wall(stages: Sequence[StageTime]) -> Band:
    """The stages one after the other."""
    return total(stage.wall for stage in stages)
