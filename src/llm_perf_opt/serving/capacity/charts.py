"""A replay as charts: who runs and who waits, the cache, how long first tokens take, and the steps in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.core.report import Axis, Chart, Kind, Line, LineChart, Mark, Span, SpanChart
from llm_perf_opt.serving.capacity.promise import Promise
from llm_perf_opt.serving.capacity.tables import Banded
from llm_perf_opt.serving.requests import EngineSteps, Replayed

_MOST_POINTS = 600
_GANTT_STEPS = 60
_TIME = Axis("time", Kind.SECONDS)


def replay_charts(replayed: Replayed, banded: Banded, promise: Promise | None) -> Iterator[Chart]:
    """Of one replica, the first; the distribution is of all of them."""
    steps = replayed.steps
    yield LineChart(
        title="Requests running and waiting",
        x=_TIME,
        y=Axis("requests", Kind.COUNT),
        lines=(_over_time("running", steps, steps.running), _over_time("waiting", steps, steps.waiting)),
        caption="Of one replica, at the expected step times.",
    )
    yield LineChart(
        title="Cache in use",
        x=_TIME,
        y=Axis("share of the blocks", Kind.RATIO),
        lines=(_over_time("cache in use", steps, steps.cache_use),),
        caption="Where it is full, requests wait for blocks, and running ones may be stopped.",
    )
    yield distribution_chart(banded, promise)
    yield gantt_chart(steps)


def _over_time(name: str, steps: EngineSteps, values: Sequence[float]) -> Line:
    """The largest value of each stretch of time, so that no peak is lost between the points."""
    stride = max(1, len(values) // _MOST_POINTS)
    points = [
        (steps.start_s[start], float(max(values[start : start + stride]))) for start in range(0, len(values), stride)
    ]
    return Line(name, tuple(points), "step")


def distribution_chart(banded: Banded, promise: Promise | None) -> Chart:
    """Share of the requests over the time to their first token."""
    lines = []
    for name, outcome, style in (
        ("expected", banded.expected, "line"),
        ("low edge of step times", banded.low, "dashed"),
        ("high edge of step times", banded.high, "dashed"),
    ):
        times = outcome.ttft.sorted_s
        shares = sorted({round(number / 100, 2) for number in range(1, 101)} | {0.995, 0.999})
        points = [(max(outcome.ttft.at(share), 1e-6), share) for share in shares if share * len(times) >= 1]
        lines.append(Line(name, tuple(points), style, family="edges" if style == "dashed" else "expected"))
    marks: tuple[Mark, ...] = ()
    if promise is not None and promise.ttft_s is not None:
        marks = (Mark(promise.ttft_s, promise.share, f"promised: {promise.percentile}"),)
    return LineChart(
        title="Time to the first token",
        x=Axis("TTFT", Kind.SECONDS, is_log=True),
        y=Axis("share of requests", Kind.RATIO),
        lines=tuple(lines),
        marks=marks,
        caption="A point: this share of the requests had its first token by then.",
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
