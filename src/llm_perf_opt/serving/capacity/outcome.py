"""What a replay says about its requests: times by percentile, rates, waiting, cache, and whether they meet an SLO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plain_text import visible
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.serving.requests import Replayed
from llm_perf_opt.serving.traffic_text import read_time

TIMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_PART = re.compile(r"(ttft|tpot|e2e)(?:_ms)?=([0-9.]{1,12}[a-z]{0,4})")
_SHARE = re.compile(r"p([0-9]{2}(?:\.[0-9]{1,3})?)")
DEFAULT_SHARE = 0.99

DAY_S = 86_400.0
_NOISE = 3.0  # standard deviations by which a backlog may grow by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in seconds; None is no limit. A `share` of the requests has to stay within each of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = DEFAULT_SHARE

    @property
    def limits_s(self) -> dict[str, float]:
        """`TTFT`, `TPOT` and `E2E` -> seconds, as far as they are limited."""
        limits = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "E2E": self.e2e_s}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def percentile(self) -> str:
        """`p99`."""
        return f"p{self.share * 100:g}"

    def __str__(self) -> str:
        parts = (f"{self.percentile} {name} at most {format_seconds(limit)}" for name, limit in self.limits_s.items())
        return ", ".join(parts)


def read_slo(text: str) -> Slo:
    """`ttft=500ms,tpot=40ms`, `p95,ttft=1s`, `e2e=30s`."""
    share, limits = DEFAULT_SHARE, dict[str, float]()
    for word in filter(None, re.split(r"[,\s]+", text.strip().lower())):
        part, percentile = _PART.fullmatch(word), _SHARE.fullmatch(word)
        if percentile is not None and 0 < float(percentile[1]) < 100:
            share = float(percentile[1]) / 100
        elif part is not None and f"{part[1]}_s" not in limits:
            limits[f"{part[1]}_s"] = read_time(part[2])
        else:
            raise _unclear(text, f"{visible(word)[:40]!r} is neither a limit nor a percentile")
    if not limits:
        raise _unclear(text, "it names no limit")
    return Slo(share=share, **limits)


def _unclear(text: str, why: str) -> UsageError:
    return UsageError(
        f"The SLO {visible(text)[:80]!r} is not clear.",
        why=f"{why}; limits are ttft, tpot and e2e, each at most once and with a unit of time",
        fix="write --slo ttft=500ms,tpot=40ms for p99, or --slo p95,ttft=500ms for another percentile",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """One time of all requests, sorted: the smallest that a share of them does not exceed."""

    sorted_s: tuple[float, ...]

    def at(self, share: float) -> float:
        """The nearest rank: no value that no request had."""
        return self.sorted_s[min(len(self.sorted_s), max(1, ceil(share * len(self.sorted_s) - 1e-9))) - 1]

    @property
    def median_s(self) -> float:
        """Half of the requests take no longer."""
        return self.at(0.5)

    @property
    def p95_s(self) -> float:
        """95 of 100 take no longer."""
        return self.at(0.95)

    @property
    def p99_s(self) -> float:
        """99 of 100 take no longer."""
        return self.at(0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """All replicas together. `tpot` is None where no request has a second token; `pages` are images in the prompts."""

    requests: int
    seconds: float  # from the first arrival to the last token
    arrivals_s: float  # from the first arrival to the last
    ttft: Percentiles
    tpot: Percentiles | None
    e2e: Percentiles
    queue: Percentiles
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    pages: int
    preemptions: int
    steps: int
    busy: float  # share of the time in which a replica has a step running
    mean_running: float  # over the whole time, of all replicas together: rate x time between the first step and the end
    mean_waiting: float  # likewise: rate x time in the queue
    most_waiting: int
    mean_cache_use: float  # while steps run
    most_cache_use: float
    is_growing: bool  # the backlog when the last request came was larger than halfway there
    is_closed: bool = False  # clients ask again when an answer is there: there is no arrival rate and no backlog

    @property
    def requests_per_s(self) -> float:
        """Requests answered, over the whole time."""
        return self.requests / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens generated, over the whole time."""
        return self.output_tokens / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated and read, over the whole time."""
        return (self.output_tokens + self.prompt_tokens) / self.seconds

    @property
    def pages_per_s(self) -> float | None:
        """Pages read in a second; None: the requests have no pages."""
        return self.pages / self.seconds if self.pages else None

    @property
    def asked_per_s(self) -> float | None:
        """The rate at which requests came, never below `requests_per_s`: the same requests, in less time.

        None where clients wait for each other, or all came at once.
        """
        has_rate = not self.is_closed and self.arrivals_s > 0
        return self.requests / self.arrivals_s if has_rate else None

    @property
    def cached_share(self) -> float:
        """The share of the prompts that was found in the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def times(self) -> dict[str, Percentiles]:
        """`TTFT`, `TPOT` and `E2E`, as far as there are any."""
        times_by_name = {"TTFT": self.ttft, "TPOT": self.tpot, "E2E": self.e2e}
        return {name: times for name, times in times_by_name.items() if times is not None}

    def keeps(self, slo: Slo) -> bool:
        """Whether every limit holds for the SLO's share of the requests. With a backlog that grows none does."""
        times = self.times()
        met = (name not in times or times[name].at(slo.share) <= limit for name, limit in slo.limits_s.items())
        return all(met) and not self.is_growing


def outcome(replicas: Sequence[Replayed], *, pages: int = 0, is_closed: bool = False) -> ReplayOutcome:
    """The times and rates of the requests of all replicas; `pages` is how many images they have together."""
    arrivals = sorted(time for replica in replicas for time in replica.requests.arrival_s)
    ends = sorted(time for replica in replicas for time in replica.requests.last_token_s)
    seconds = max(ends[-1] - arrivals[0], 1e-9)
    waiting = [count for replica in replicas for count in replica.steps.waiting]
    e2e, queue = (
        _sorted(time for replica in replicas for time in _since_arrival(replica, event))
        for event in ("last_token_s", "scheduled_s")
    )
    tpot = _sorted(time for replica in replicas for time in _per_token(replica))
    return ReplayOutcome(
        requests=len(arrivals),
        seconds=seconds,
        arrivals_s=arrivals[-1] - arrivals[0],
        ttft=Percentiles(
            sorted_s=_sorted(time for replica in replicas for time in _since_arrival(replica, "first_token_s"))
        ),
        tpot=Percentiles(sorted_s=tpot) if tpot else None,
        e2e=Percentiles(sorted_s=e2e),
        queue=Percentiles(sorted_s=queue),
        prompt_tokens=sum(sum(replica.requests.prompt_tokens) for replica in replicas),
        output_tokens=sum(sum(replica.requests.output_tokens) for replica in replicas),
        cached_tokens=sum(sum(replica.requests.cached_tokens) for replica in replicas),
        pages=pages,
        preemptions=sum(sum(replica.requests.preemptions) for replica in replicas),
        steps=sum(len(replica.steps.start_s) for replica in replicas),
        busy=min(1.0, sum(replica.busy_s for replica in replicas) / len(replicas) / seconds),
        mean_running=(sum(e2e) - sum(queue)) / seconds,  # Little's law
        mean_waiting=sum(queue) / seconds,
        most_waiting=max(waiting, default=0),
        mean_cache_use=_mean_cache_use(replicas),
        most_cache_use=max((use for replica in replicas for use in replica.steps.cache_use), default=0.0),
        is_growing=not is_closed and _is_growing(arrivals, ends),
        is_closed=is_closed,
    )


def slower(replayed: Replayed, factor: float) -> Replayed:
    """The same replay with every time multiplied.

    A replay with slower steps gives exactly this where every time follows from the steps: clients that ask again when
    an answer is there, and a host that adds no time.
    """
    requests, steps = replayed.requests, replayed.steps
    return replace(
        replayed,
        requests=replace(
            requests,
            arrival_s=[factor * time for time in requests.arrival_s],
            scheduled_s=[factor * time for time in requests.scheduled_s],
            first_token_s=[factor * time for time in requests.first_token_s],
            last_token_s=[factor * time for time in requests.last_token_s],
        ),
        steps=replace(
            steps,
            start_s=[factor * time for time in steps.start_s],
            duration_s=[factor * time for time in steps.duration_s],
        ),
        seconds=factor * replayed.seconds,
        busy_s=factor * replayed.busy_s,
    )


def _sorted(times: Iterator[float]) -> tuple[float, ...]:
    return tuple(sorted(times))


def _since_arrival(replayed: Replayed, event: str) -> Iterator[float]:
    times: list[float] = getattr(replayed.requests, event)
    return (time - arrival for time, arrival in zip(times, replayed.requests.arrival_s, strict=True))


def _per_token(replayed: Replayed) -> Iterator[float]:
    requests = replayed.requests
    for first, last, tokens in zip(requests.first_token_s, requests.last_token_s, requests.output_tokens, strict=True):
        if tokens > 1:
            yield (last - first) / (tokens - 1)


def _mean_cache_use(replicas: Sequence[Replayed]) -> float:
    """Weighed by how long each step lasted."""
    total = sum(sum(replica.steps.duration_s) for replica in replicas)
    weighed = sum(
        use * lasts
        for replica in replicas
        for use, lasts in zip(replica.steps.cache_use, replica.steps.duration_s, strict=True)
    )
    return weighed / total if total else 0.0


def _is_growing(arrivals: Sequence[float], ends: Sequence[float]) -> bool:
    """Whether more requests were open when the last one came than halfway there, beyond what chance explains."""
    first, last = arrivals[0], arrivals[-1]
    if last <= first:
        return False
    middle = (first + last) / 2
    halfway = sum(time <= middle for time in arrivals) - sum(time <= middle for time in ends)
    at_end = len(arrivals) - sum(time <= last for time in ends)
    return at_end > 1.25 * halfway + _NOISE * sqrt(max(halfway, 1)) + 4
