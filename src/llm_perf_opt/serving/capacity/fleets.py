"""Replayed fleets side by side: plan, GPUs, throughput, whether they meet the SLO or the deadline, and the cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.report import (
    Axis,
    BarChart,
    Cell,
    Chart,
    Column,
    Kind,
    Line,
    LineChart,
    Mark,
    Series,
    Table,
    table_of,
)
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.serving.capacity.outcome import DAY_S, ReplayOutcome, Slo
from llm_perf_opt.serving.capacity.replay_report import (
    GLANCE,
    Banded,
    limit_of,
    rounded,
    rounded_or_none,
    times_text,
)
from llm_perf_opt.serving.capacity.steady_state import SteadyState
from llm_perf_opt.serving.traffic_text import read_time

FLEETS, CONSIDERED = "Fleets", "Every plan that fits, in a steady state"
_HOUR_S, _MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A number of pages, and the time to read them in."""

    pages: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.pages:,} pages in {_time_text(self.seconds)}"


def read_deadline(pages: int | None, within: str | None) -> Deadline | None:
    """`200000` and `24h`; None: neither is given. One without the other is refused."""
    if (pages is None) != (within is None):
        raise UsageError(
            "A deadline is a number of pages and a time.",
            why=f"{'--within' if within is None else '--pages'} is missing",
            fix="write --pages 200000 --within 24h",
        )
    return None if pages is None or within is None else Deadline(pages=pages, seconds=read_time(within))


def _time_text(seconds: float) -> str:
    return f"{seconds / _HOUR_S:g} h" if seconds >= _HOUR_S else format_seconds(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """One way to run a replica, by its step table alone. `best` is None where even a single request breaks the SLO."""

    device: str
    plan: ParallelPlan
    weights: str | None
    cache_tokens: int
    max_sequences: int
    max_batched_tokens: int
    states: tuple[SteadyState, ...]
    best: SteadyState | None

    @property
    def name(self) -> str:
        """`h100-sxm tp4`."""
        spread = f" {self.plan.describe()}" if self.plan.replica_ranks > 1 else ""
        return f"{self.device}{spread}{f' {self.weights}' if self.weights else ''}"

    @property
    def requests_per_s_and_gpu(self) -> float | None:
        """The highest throughput in a steady state."""
        return None if self.best is None else self.best.requests_per_s / self.plan.replica_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas of one plan, replayed. `fewest` is the smallest number of replicas that meets the SLO.

    `price_per_hour` is for one GPU; None: the price is not known.
    """

    considered: Considered
    replicas: int
    banded: Banded
    fewest: int | None = None
    price_per_hour: float | None = None

    @property
    def gpus(self) -> int:
        """The GPUs of all replicas."""
        return self.replicas * self.considered.plan.replica_ranks

    @property
    def name(self) -> str:
        """`8 x h100-sxm tp4`."""
        return f"{self.gpus} x {self.considered.name}"

    @property
    def outcome(self) -> ReplayOutcome:
        """What the replay gave at the expected step times."""
        return self.banded.expected

    @property
    def pages_per_day_and_gpu(self) -> float | None:
        """Pages that a GPU reads in a day; None: the requests have no pages."""
        rate = self.outcome.pages_per_s
        return None if rate is None else rate * DAY_S / self.gpus

    @property
    def fewest_gpus(self) -> int | None:
        """The smallest number of GPUs that meets the SLO with this plan."""
        return None if self.fewest is None else self.fewest * self.considered.plan.replica_ranks

    def gpus_for(self, deadline: Deadline, outcome: ReplayOutcome | None = None) -> int | None:
        """The GPUs that read the pages in time at the rate of this replay, in whole replicas."""
        rate = (outcome or self.outcome).pages_per_s
        if rate is None:
            return None
        needed = ceil(deadline.pages / deadline.seconds / (rate / self.replicas) - 1e-9)
        return max(1, needed) * self.considered.plan.replica_ranks

    def seconds_for(self, deadline: Deadline) -> float | None:
        """When the last page is read. The GPUs are whole replicas, so this is at or before the deadline."""
        gpus, rate = self.gpus_for(deadline), self.outcome.pages_per_s
        return None if gpus is None or not rate else deadline.pages / (rate / self.gpus * gpus)

    def cost_of(self, deadline: Deadline) -> float | None:
        """The cost of the GPUs until the last page is read; None without a price."""
        cost = self.cost_per_million(self.outcome.pages_per_s)
        return None if cost is None else cost * deadline.pages / _MILLION

    def cost_per_million(self, per_s: float | None) -> float | None:
        """The cost of a million tokens or pages at this rate; None without a price or a rate."""
        if self.price_per_hour is None or not per_s:
            return None
        return self.price_per_hour * self.gpus / _HOUR_S / per_s * _MILLION


def fleets_table(fleets: Sequence[Fleet], slo: Slo | None, deadline: Deadline | None) -> Table:
    """One row for each fleet; a column that no fleet fills is left out."""
    share = 0.99 if slo is None else slo.share
    name = f"p{share * 100:g}"
    cells: dict[Column, Callable[[Fleet], Cell]] = {
        Column("fleet"): lambda fleet: fleet.name,
        Column("replicas", Kind.COUNT): lambda fleet: fleet.replicas,
    }
    if slo is not None:
        cells[Column("meets the SLO")] = lambda fleet: fleet.banded.keeps(slo)
        cells[Column("fewest GPUs that meet it", Kind.COUNT)] = lambda fleet: fleet.fewest_gpus
    cells |= {
        Column("requests/s", Kind.COUNT): lambda fleet: rounded(fleet.outcome.requests_per_s),
        Column("output tokens/s per GPU", Kind.COUNT): lambda fleet: round(
            fleet.outcome.output_tokens_per_s / fleet.gpus
        ),
        Column(f"{name} TTFT", Kind.SECONDS): lambda fleet: fleet.outcome.ttft.at(share),
        Column(f"{name} TPOT", Kind.SECONDS): lambda fleet: (
            None if fleet.outcome.tpot is None else fleet.outcome.tpot.at(share)
        ),
    }
    if any(fleet.pages_per_day_and_gpu is not None for fleet in fleets):
        cells[Column("pages/day per GPU", Kind.COUNT)] = lambda fleet: (
            None if fleet.pages_per_day_and_gpu is None else round(fleet.pages_per_day_and_gpu)
        )
    if deadline is not None:
        cells[Column(f"GPUs for {deadline}", Kind.COUNT)] = lambda fleet: fleet.gpus_for(deadline)
        cells[Column("low and high estimate")] = lambda fleet: _edges(fleet, deadline)
    if any(fleet.price_per_hour is not None for fleet in fleets):
        cells[Column("$/1M out", Kind.COUNT)] = lambda fleet: rounded_or_none(
            fleet.cost_per_million(fleet.outcome.output_tokens_per_s)
        )
        if any(fleet.outcome.pages for fleet in fleets):
            cells[Column("$/1M pages", Kind.COUNT)] = lambda fleet: rounded_or_none(
                fleet.cost_per_million(fleet.outcome.pages_per_s)
            )
    return table_of(FLEETS, fleets, cells)


def glance_table(fleet: Fleet, slo: Slo | None, first: tuple[str, str] | None = None) -> Table:
    """Is the fleet enough, how long does a request take, what is the bottleneck: one line each.

    `first` replaces the first line.
    """
    is_asked = fleet.outcome.asked_per_s is not None or slo is not None
    rows = (
        first
        or (
            f"{'Is' if is_asked else 'What does'} {fleet.name} {'enough' if is_asked else 'do'}?",
            _verdict(fleet, slo),
        ),
        ("How long does a request take?", times_text(fleet.banded, slo)),
        ("What is the bottleneck?", limit_of(fleet.outcome) + _cached_text(fleet.outcome)),
    )
    return Table(title=GLANCE, columns=(Column("question"), Column("answer")), rows=rows)


def _cached_text(outcome: ReplayOutcome) -> str:
    if not outcome.cached_tokens:
        return ""
    cached, prompt = (tokens / outcome.requests for tokens in (outcome.cached_tokens, outcome.prompt_tokens))
    return f". Each request finds {cached:,.0f} of {prompt:,.0f} prompt tokens in cache"


def _verdict(fleet: Fleet, slo: Slo | None) -> str:
    outcome = fleet.outcome
    parts = [
        f"throughput {format_count(rounded(outcome.requests_per_s))} requests/s, "
        f"{outcome.output_tokens_per_s:,.0f} output tokens/s"
    ]
    if slo is not None:
        parts.insert(0, f"{fleet.banded.keeps(slo)}, {slo}")
        if fleet.fewest_gpus is not None:
            parts.append(f"the fewest GPUs that meet it with this plan: {fleet.fewest_gpus}")
    elif outcome.asked_per_s is not None:
        arrivals = f"{format_count(rounded(outcome.asked_per_s))} requests/s arrive"
        parts.insert(
            0, f"no, {arrivals} and the queue grows" if outcome.is_growing else f"yes, {arrivals} and no queue grows"
        )
    if fleet.pages_per_day_and_gpu is not None:
        edges = ((outcome.pages_per_s or 0.0) * DAY_S / fleet.gpus for outcome in (fleet.banded.high, fleet.banded.low))
        low, high = edges
        parts.append(f"{fleet.pages_per_day_and_gpu:,.0f} pages/day per GPU ({low:,.0f} to {high:,.0f})")
    return "; ".join(parts)


def deadline_answer(fleet: Fleet, deadline: Deadline) -> str:
    """The GPUs that read the pages in time, with the low and high estimate and the cost."""
    cost, seconds = fleet.cost_of(deadline), fleet.seconds_for(deadline)
    price = "" if cost is None else f", ${cost:,.2f} in total"
    done = "" if seconds is None else f", done in {_time_text(rounded(seconds / _HOUR_S) * _HOUR_S)}"
    return f"{fleet.gpus_for(deadline)} x {fleet.considered.name} ({_edges(fleet, deadline)}){done}{price}"


def _edges(fleet: Fleet, deadline: Deadline) -> str:
    low, high = (fleet.gpus_for(deadline, edge) for edge in (fleet.banded.low, fleet.banded.high))
    return f"{low} to {high}"


def considered_table(considered: Sequence[Considered]) -> Table:
    """Every plan with its highest throughput, by its step table alone."""

    def state(option: Considered, figure: str) -> Cell:
        return None if option.best is None else float(getattr(option.best, figure))

    return table_of(
        CONSIDERED,
        considered,
        {
            Column("plan"): lambda option: option.name,
            Column("cache, tokens", Kind.COUNT): lambda option: option.cache_tokens,
            Column("max_num_seqs", Kind.COUNT): lambda option: option.max_sequences,
            Column("max_num_batched_tokens", Kind.COUNT): lambda option: option.max_batched_tokens,
            Column("concurrent sequences", Kind.COUNT): lambda option: (
                None if option.best is None else option.best.sequences
            ),
            Column("mean step", Kind.SECONDS): lambda option: state(option, "step_s"),
            Column("highest requests/s per GPU", Kind.COUNT): lambda option: (
                None if option.requests_per_s_and_gpu is None else rounded(option.requests_per_s_and_gpu)
            ),
        },
    )


def fleet_charts(fleets: Sequence[Fleet], considered: Sequence[Considered], slo: Slo | None) -> Iterator[Chart]:
    """The throughput per GPU of each fleet, and throughput against latency of every plan."""
    if len(fleets) > 1:
        yield _per_gpu_chart(fleets)
    lines = [
        Line(
            option.name,
            tuple((state.step_s, state.requests_per_s / option.plan.replica_ranks) for state in _rising(option)),
        )
        for option in considered
    ]
    marks = [
        Mark(fleet.outcome.tpot.median_s, fleet.outcome.requests_per_s / fleet.gpus, f"replayed: {fleet.name}")
        for fleet in fleets
        if fleet.outcome.tpot is not None
    ]
    if any(len(line.points) > 1 for line in lines):
        caption = "The lines are steady states, from one sequence at a time to as many as fit. The points are replays."
        if slo is not None and slo.tpot_s is not None:
            caption += f" The SLO is a TPOT of {format_seconds(slo.tpot_s)}."
        yield LineChart(
            title="Throughput against latency",
            x=Axis("time per output token", Kind.SECONDS, is_log=True),
            y=Axis("requests/s per GPU", Kind.COUNT),
            lines=tuple(lines),
            marks=tuple(marks),
            caption=caption,
        )


def _rising(option: Considered) -> Iterator[SteadyState]:
    """The states in order of their step time: a padded batch may be faster than a smaller one."""
    last = 0.0
    for state in option.states:
        if state.step_s > last:
            last = state.step_s
            yield state


def _per_gpu_chart(fleets: Sequence[Fleet]) -> Chart:
    has_pages = all(fleet.pages_per_day_and_gpu is not None for fleet in fleets)
    what = "Pages per day per GPU" if has_pages else "Output tokens/s per GPU"

    def values(edge: str) -> tuple[float, ...]:
        outcomes: list[ReplayOutcome] = [getattr(fleet.banded, edge) for fleet in fleets]
        rates = [
            (outcome.pages_per_s or 0.0) * DAY_S if has_pages else outcome.output_tokens_per_s for outcome in outcomes
        ]
        return tuple(round(rate / fleet.gpus) for rate, fleet in zip(rates, fleets, strict=True))

    return BarChart(
        title=what,
        categories=tuple(fleet.name for fleet in fleets),
        series=(
            Series("low", values("high")),  # slow steps give the low rate
            Series("expected", values("expected")),
            Series("high", values("low")),
        ),
        kind=Kind.COUNT,
        caption="At the load of this traffic. Low and high come from the high and low estimate of the step times.",
    )
