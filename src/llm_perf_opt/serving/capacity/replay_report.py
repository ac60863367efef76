"""What a replay shows: tables of times and rates, charts of who runs and who waits, and its steps as a Chrome trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.report import Axis, Cell, Chart, Column, Kind, Line, LineChart, Mark, Span, SpanChart, Table
from llm_perf_opt.core.units import format_count, format_number_of, format_ratio, format_seconds
from llm_perf_opt.core.witness import Witness, share_of, worked_out
from llm_perf_opt.serving.capacity.outcome import DAY_S, Percentiles, ReplayOutcome, Slo
from llm_perf_opt.serving.requests import EngineSteps, Replayed

GLANCE, TIMES, RATES, ENGINE = "At a glance", "Times of requests", "Rates", "Inside the engine"
SHARES = "Where the mean step goes"
_FULL_CACHE = 0.98

_MOST_POINTS = 600
_GANTT_STEPS = 60
_TIME = Axis("time", Kind.SECONDS)

_US = 1e6
_ENGINE_TRACK, _FIRST_REQUEST_TRACK = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Banded:
    """A replay at the expected step times, and with all of them at their low and at their high estimate."""

    expected: ReplayOutcome
    low: ReplayOutcome
    high: ReplayOutcome

    def keeps(self, slo: Slo) -> str:
        """Whether the SLO is met, and with which estimates of the step times."""
        if not self.expected.keeps(slo):
            return "no, except with the low estimate of the step times" if self.low.keeps(slo) else "no"
        return "yes" if self.high.keeps(slo) else "yes, but not with the high estimate of the step times"


def times_text(banded: Banded, slo: Slo | None) -> str:
    """The times at the percentile of the SLO, or at p99 without one, each with its low and high estimate."""
    share = 0.99 if slo is None else slo.share
    limits = {} if slo is None else slo.limits_s
    parts = []
    for name, times in banded.expected.times().items():
        edges = (outcome.times()[name].at(share) for outcome in (banded.low, banded.high))
        low, high = (format_seconds(edge) for edge in edges)
        limit = f", SLO {format_seconds(limits[name])}" if name in limits else ""
        parts.append(f"{name} {format_seconds(times.at(share))} ({low} to {high}{limit})")
    return f"p{share * 100:g}: " + ", ".join(parts)


def limit_of(outcome: ReplayOutcome) -> str:
    """The bottleneck: a full KV cache, the time of the GPU, or none yet."""
    if outcome.preemptions or outcome.most_cache_use >= _FULL_CACHE:
        stopped = f", {format_number_of(outcome.preemptions, 'preemption')}" if outcome.preemptions else ""
        return f"KV cache: full at times ({format_ratio(outcome.mean_cache_use)} on average){stopped}"
    waiting = f"{format_count(rounded(outcome.mean_waiting))} requests wait on average"
    if outcome.is_growing or outcome.is_closed or outcome.mean_waiting >= 1:
        return f"GPU time: a step is running {format_ratio(outcome.busy)} of the time, and {waiting}"
    return f"none yet: {waiting}, and the KV cache is at most {format_ratio(outcome.most_cache_use)} full"


def times_table(banded: Banded) -> Table:
    """The median, p95 and p99 of each time, with its low and high estimate."""
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
    """Throughput of all GPUs and of one."""
    rows = tuple(_rates(banded, gpus))
    columns = (Column("rate"), *(Column(name, Kind.COUNT) for name in ("expected", "low", "high")))
    return Table(title=RATES, columns=columns, rows=rows)


def _rates(banded: Banded, gpus: int) -> Iterator[tuple[Cell, ...]]:
    # A low estimate of step times is a high rate: the columns say low and high of the rate.
    three = (banded.expected, banded.high, banded.low)
    yield ("requests/s", *(rounded(outcome.requests_per_s) for outcome in three))
    yield ("output tokens/s", *(rounded(outcome.output_tokens_per_s) for outcome in three))
    yield ("output tokens/s per GPU", *(rounded(outcome.output_tokens_per_s / gpus) for outcome in three))
    yield ("tokens/s, prompts included", *(rounded(outcome.tokens_per_s) for outcome in three))
    if banded.expected.pages_per_s is not None:
        yield ("pages/s", *(rounded(outcome.pages_per_s or 0.0) for outcome in three))
        yield ("pages/day per GPU", *(round((outcome.pages_per_s or 0.0) * DAY_S / gpus) for outcome in three))


def engine_table(outcome: ReplayOutcome) -> Table:
    """What the replay saw of the engine, at the expected step times."""
    rows: tuple[tuple[str, str], ...] = (
        ("steps", format_count(outcome.steps)),
        ("share of the time with a step running", format_ratio(outcome.busy)),
        ("requests running, on average", format_count(rounded(outcome.mean_running))),
        ("requests waiting, on average", format_count(rounded(outcome.mean_waiting))),
        ("requests waiting, at most", format_count(outcome.most_waiting)),
        ("KV cache in use while steps run, on average", format_ratio(outcome.mean_cache_use)),
        ("KV cache in use, at most", format_ratio(outcome.most_cache_use)),
        ("preempted (KV cache full)", format_count(outcome.preemptions)),
        ("prompt tokens found in the prefix cache", format_ratio(outcome.cached_share)),
    )
    return Table(title=ENGINE, columns=(Column("what"), Column("figure")), rows=rows)


def shares_table(seconds: Mapping[str, float], name: str) -> Table:
    """Where the GPU time of the mean step goes, in a steady state."""
    total_s = sum(seconds.values())
    rows = [(kind, time, time / total_s) for kind, time in sorted(seconds.items(), key=lambda share: -share[1]) if time]
    columns = (Column("work"), Column("seconds", Kind.SECONDS), Column("share", Kind.RATIO))
    origin = "times of the step's kernels, as shares of the mean step"
    parts = [Witness(kind, time, "s", origin) for kind, time, _ in rows]
    total = worked_out("sum", "mean step", parts, "s", origin)
    figures = [*parts, total]
    return Table(
        title=f"{SHARES}, {name}",
        columns=columns,
        rows=tuple(rows),
        footer=("mean step", total_s, 1.0),
        witnesses=lambda row, place: figures[row] if place == 1 else share_of(figures[row], total),
    )


def rounded_or_none(number: float | None) -> float | None:
    """Three digits of what may be unknown."""
    return None if number is None else rounded(number)


def rounded(number: float) -> float:
    """Three digits: a replay of some hundred requests knows no more."""
    return float(f"{number:.3g}")


def replay_charts(replayed: Replayed, banded: Banded, slo: Slo | None) -> Iterator[Chart]:
    """The charts of the first replica; the distribution is of all replicas."""
    steps = replayed.steps
    yield LineChart(
        title="Requests running and waiting",
        x=_TIME,
        y=Axis("requests", Kind.COUNT),
        lines=(_over_time("running", steps, steps.running), _over_time("waiting", steps, steps.waiting)),
        caption="One replica, at the expected step times.",
    )
    yield LineChart(
        title="KV cache in use",
        x=_TIME,
        y=Axis("share of the blocks", Kind.RATIO),
        lines=(_over_time("cache in use", steps, steps.cache_use),),
        caption="When the cache is full, requests wait for blocks, and running requests may be preempted.",
    )
    yield distribution_chart(banded, slo)
    yield gantt_chart(steps)


def _over_time(name: str, steps: EngineSteps, values: Sequence[float]) -> Line:
    """The largest value of each stretch of time, so that no peak is lost between the points."""
    stride = max(1, len(values) // _MOST_POINTS)
    points = [
        (steps.start_s[start], float(max(values[start : start + stride]))) for start in range(0, len(values), stride)
    ]
    return Line(name, tuple(points), "step")


def distribution_chart(banded: Banded, slo: Slo | None) -> Chart:
    """Share of the requests over the time to their first token."""
    lines = []
    for name, outcome, style in (
        ("expected", banded.expected, "line"),
        ("low estimate of the step times", banded.low, "dashed"),
        ("high estimate of the step times", banded.high, "dashed"),
    ):
        times = outcome.ttft.sorted_s
        shares = sorted({round(number / 100, 2) for number in range(1, 101)} | {0.995, 0.999})
        points = [(max(outcome.ttft.at(share), 1e-6), share) for share in shares if share * len(times) >= 1]
        lines.append(Line(name, tuple(points), style, family="estimates" if style == "dashed" else "expected"))
    marks: tuple[Mark, ...] = ()
    if slo is not None and slo.ttft_s is not None:
        marks = (Mark(slo.ttft_s, slo.share, f"SLO: {slo.percentile}"),)
    return LineChart(
        title="Time to first token",
        x=Axis("TTFT", Kind.SECONDS, is_log=True),
        y=Axis("share of requests", Kind.RATIO),
        lines=tuple(lines),
        marks=marks,
        caption="A point says which share of the requests had its first token by then.",
    )


def gantt_chart(steps: EngineSteps) -> Chart:
    """Some steps of the replay by what they do: the stretch after its first quarter in which most prompts are read."""
    starts = range(len(steps.start_s) // 4, max(1, len(steps.start_s) - _GANTT_STEPS), _GANTT_STEPS)
    first = max(starts, key=lambda start: sum(map(bool, steps.prompt_tokens[start : start + _GANTT_STEPS])), default=0)
    spans = []
    for at in range(first, min(first + _GANTT_STEPS, len(steps.start_s))):
        start, prompt, decoding = steps.start_s[at], steps.prompt_tokens[at], steps.decoding[at]
        lane = "mixed" if prompt and decoding else "prompts" if prompt else "decode"
        name = f"step {at}: {decoding:,} sequences decode, {prompt:,} prompt tokens"
        spans.append(Span(lane, name, start, start + steps.duration_s[at]))
    return SpanChart(
        title=f"{len(spans)} steps of the replay",
        axis=_TIME,
        spans=tuple(spans),
        caption="A step decodes, reads prompts, or does both at once.",
    )


def chrome_trace(replicas: Sequence[Replayed], title: str) -> bytes:
    """Each replica is a process with a track of steps, tracks for the requests that run at once, and counters."""
    events: list[dict[str, object]] = []
    for number, replica in enumerate(replicas):
        events += _process_name(number, title if len(replicas) == 1 else f"{title}, replica {number}")
        events += _steps(number, replica)
        events += _requests(number, replica)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, allow_nan=False).encode()


def _process_name(process: int, title: str) -> Iterator[dict[str, object]]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
    yield {"ph": "M", "name": "thread_name", "pid": process, "tid": _ENGINE_TRACK, "args": {"name": "steps"}}


def _steps(process: int, replica: Replayed) -> Iterator[dict[str, object]]:
    steps = replica.steps
    for at, (start, lasts) in enumerate(zip(steps.start_s, steps.duration_s, strict=True)):
        prompt, decoding = steps.prompt_tokens[at], steps.decoding[at]
        yield {
            "ph": "X",
            "name": "mixed" if prompt and decoding else "prompts" if prompt else "decode",
            "pid": process,
            "tid": _ENGINE_TRACK,
            "ts": start * _US,
            "dur": lasts * _US,
            "args": {"step": at, "sequences decoding": decoding, "prompt tokens": prompt},
        }
        counts = {"running": steps.running[at], "waiting": steps.waiting[at]}
        yield {"ph": "C", "name": "requests", "pid": process, "ts": start * _US, "args": counts}
        share = {"share": steps.cache_use[at]}
        yield {"ph": "C", "name": "cache in use", "pid": process, "ts": start * _US, "args": share}


def _requests(process: int, replica: Replayed) -> Iterator[dict[str, object]]:
    """Waiting, prompt and answer of each request, on the first track that is free."""
    requests = replica.requests
    free_at: list[float] = []
    for at, name in enumerate(requests.ids):
        arrival, end = requests.arrival_s[at], requests.last_token_s[at]
        track = next((place for place, free in enumerate(free_at) if free <= arrival), len(free_at))
        free_at[track:] = [end, *free_at[track + 1 :]]
        stages = (
            ("waits", arrival, requests.scheduled_s[at]),
            ("prompt", requests.scheduled_s[at], requests.first_token_s[at]),
            ("answer", requests.first_token_s[at], end),
        )
        for what, start, stop in stages:
            if stop > start:
                yield {
                    "ph": "X",
                    "name": f"{name} {what}",
                    "cat": what,
                    "pid": process,
                    "tid": _FIRST_REQUEST_TRACK + track,
                    "ts": start * _US,
                    "dur": (stop - start) * _US,
                    "args": {"prompt tokens": requests.prompt_tokens[at], "output tokens": requests.output_tokens[at]},
                }
