"""A replay as tables: times with their bands, rates, what the engine did, what limits, where the mean step goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llm_perf_opt.core.report import Cell, Column, Kind, Table
from llm_perf_opt.core.units import format_count, format_number_of, format_ratio, format_seconds
from llm_perf_opt.serving.capacity.outcome import DAY_S, Percentiles, ReplayOutcome
from llm_perf_opt.serving.capacity.promise import Promise

GLANCE, TIMES, RATES, ENGINE = "At a glance", "Times of requests", "Rates", "Inside the engine"
SHARES = "Where the mean step goes at most requests"
_FULL_CACHE = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """A replay at the table's own step times, and with all of them at the low and at the high edge of its band."""

    expected: ReplayOutcome
    low: ReplayOutcome
    high: ReplayOutcome

    def keeps(self, promise: Promise) -> str:
        """Whether a promise is kept, and if so at which edges of the band."""
        if not self.expected.keeps(promise):
            return "no, only at the low edge of the step times" if self.low.keeps(promise) else "no"
        return "yes" if self.high.keeps(promise) else "yes, but not at the high edge of the step times"


def times_text(banded: Banded, promise: Promise | None) -> str:
    """What the promised share of the requests takes at most, each time with its edges; without a promise 99 of 100."""
    share = 0.99 if promise is None else promise.share
    limits = {} if promise is None else promise.limits_s
    parts = []
    for name, times in banded.expected.times().items():
        edges = (outcome.times()[name].at(share) for outcome in (banded.low, banded.high))
        low, high = (format_seconds(edge) for edge in edges)
        allowed = f" of {format_seconds(limits[name])}" if name in limits else ""
        parts.append(f"{name} {format_seconds(times.at(share))}{allowed} ({low} to {high})")
    return f"p{share * 100:g}: " + ", ".join(parts)


def limit_of(found: ReplayOutcome) -> str:
    """The first of what is used up: the cache, the time of the device, or nothing."""
    if found.preemptions or found.most_cache_use >= _FULL_CACHE:
        stopped = (
            f", {format_number_of(found.preemptions, 'time')} a request was stopped and begun again"
            if found.preemptions
            else ""
        )
        return f"the cache: full at times ({format_ratio(found.mean_cache_use)} on average){stopped}"
    waiting = f"{format_count(rounded(found.mean_waiting))} requests wait on average"
    if found.is_growing or found.is_closed or found.mean_waiting >= 1:
        return f"the time of the device: a step runs {format_ratio(found.busy)} of the time, {waiting}"
    return f"nothing yet: {waiting}, and the cache is at most {format_ratio(found.most_cache_use)} full"


def times_table(banded: Banded) -> Table:
    """Median, 95 and 99 of 100; each with the same at the edges of the band."""
    rows: list[tuple[Cell, ...]] = []
    every = {**banded.expected.times(), "in the queue": banded.expected.queue}
    for name, times in every.items():
        edges = [_named(outcome, name) for outcome in (banded.low, banded.high)]
        for shown, share in (("median", 0.5), ("p95", 0.95), ("p99", 0.99)):
            rows.append((name, shown, times.at(share), *(edge.at(share) for edge in edges)))
    columns = (Column("time"), Column("of requests"))
    figures = tuple(Column(name, Kind.SECONDS) for name in ("expected", "low", "high"))
    return Table(title=TIMES, columns=(*columns, *figures), rows=tuple(rows))


def _named(outcome: ReplayOutcome, name: str) -> Percentiles:
    return outcome.queue if name == "in the queue" else outcome.times()[name]


def rates_table(banded: Banded, gpus: int) -> Table:
    """What is answered in a second, of all GPUs and of one."""
    rows = tuple(_rates(banded, gpus))
    columns = (Column("rate"), *(Column(name, Kind.COUNT) for name in ("expected", "low", "high")))
    return Table(title=RATES, columns=columns, rows=rows)


def _rates(banded: Banded, gpus: int) -> Iterator[tuple[Cell, ...]]:
    # A low edge of step times is a high rate: the columns say low and high of the rate.
    three = (banded.expected, banded.high, banded.low)
    yield ("requests/s", *(rounded(one.requests_per_s) for one in three))
    yield ("output tokens/s", *(rounded(one.output_tokens_per_s) for one in three))
    yield ("output tokens/s and GPU", *(rounded(one.output_tokens_per_s / gpus) for one in three))
    yield ("tokens/s, prompts too", *(rounded(one.tokens_per_s) for one in three))
    if banded.expected.pages_per_s is not None:
        yield ("pages/s", *(rounded(one.pages_per_s or 0.0) for one in three))
        yield ("pages/day and GPU", *(round((one.pages_per_s or 0.0) * DAY_S / gpus) for one in three))


def engine_table(found: ReplayOutcome) -> Table:
    """What the replay saw of the engine, at the expected step times."""
    rows: tuple[tuple[str, str], ...] = (
        ("steps", format_count(found.steps)),
        ("a step was running", format_ratio(found.busy)),
        ("requests running, on average", format_count(rounded(found.mean_running))),
        ("requests waiting, on average", format_count(rounded(found.mean_waiting))),
        ("requests waiting, at most", format_count(found.most_waiting)),
        ("cache in use while steps run, on average", format_ratio(found.mean_cache_use)),
        ("cache in use, at most", format_ratio(found.most_cache_use)),
        ("requests stopped for want of cache", format_count(found.preemptions)),
        ("of the prompts found in the prefix cache", format_ratio(found.cached_share)),
    )
    return Table(title=ENGINE, columns=(Column("what"), Column("figure")), rows=rows)


def shares_table(seconds: Mapping[str, float], name: str) -> Table:
    """Where the device time of the mean step goes, in a steady state of as many requests as there can be."""
    whole = sum(seconds.values())
    rows = [(kind, time, time / whole) for kind, time in sorted(seconds.items(), key=lambda one: -one[1]) if time]
    columns = (Column("work"), Column("seconds", Kind.SECONDS), Column("share", Kind.RATIO))
    return Table(title=f"{SHARES}, {name}", columns=columns, rows=tuple(rows), footer=("mean step", whole, 1.0))


def rounded(number: float) -> float:
    """Three digits: a replay of some hundred requests knows no more."""
    return float(f"{number:.3g}")
