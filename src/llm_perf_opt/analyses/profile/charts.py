"""The pictures of a run: stages one after the other, decode steps by latency, operators, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from llm_perf_opt.document import Axis, BarChart, Kind, Line, LineChart, Mark, Series, Span, SpanChart
from llm_perf_opt.measurement import OperatorTime, PageMeasurement

_SECONDS = 1e-9
_OPERATORS_SHOWN = 15
_PAGES_SHOWN = 20


def waterfall(page: PageMeasurement) -> SpanChart:
    """One page: each stage as long as its median over the passes, in the order in which they first end."""
    spans: list[Span] = []
    now = 0.0
    for name in dict.fromkeys(name for one in page.passes for name in one.stages_ns):
        length = median(one.stage_ns(name) for one in page.passes) * _SECONDS
        times = max(len(one.stages_ns.get(name, ())) for one in page.passes)
        spans.append(Span(name, name if times == 1 else f"{name}, {times} times", now, now + length))
        now += length
    return SpanChart(
        title=f"Stages of {page.image}",
        axis=Axis("time", Kind.SECONDS),
        spans=tuple(spans),
        caption=f"Median own time over {len(page.passes)} passes. A stage that ran several times is drawn as one, and "
        "stages inside another stand before it, so this is how a page's time is made up, not when each moment was.",
    )


def step_latencies(pages: Sequence[PageMeasurement]) -> LineChart | None:
    """The share of decode steps that took no longer than so much; None where nothing was decoded."""
    steps = sorted(ns for page in pages for one in page.passes for ns in one.stages_ns.get("decode", ()))
    if not steps:
        return None
    points = tuple((ns * _SECONDS, (place + 1) / len(steps)) for place, ns in enumerate(steps))
    middle = median(steps) * _SECONDS
    return LineChart(
        title="Latency of a decode step",
        x=Axis("time", Kind.SECONDS),
        y=Axis("share of steps", Kind.RATIO),
        lines=(Line("steps", points, style="step"),),
        marks=(Mark(middle, 0.5, "median"),),
        caption=f"{len(steps)} steps, over all pages and passes.",
    )


def operator_bars(operators: Sequence[OperatorTime]) -> BarChart | None:
    """The operators with the most own time, by stage; on CUDA it is the time of their kernels."""
    totals: Counter[str] = Counter()
    by_stage: dict[str, Counter[str]] = {}
    for one in operators:
        spent = one.self_ns if one.device_ns is None else one.device_ns
        totals[one.operator] += spent
        by_stage.setdefault(one.stage, Counter())[one.operator] += spent
    shown = [operator for operator, _ in totals.most_common(_OPERATORS_SHOWN)]
    if not shown:
        return None
    return BarChart(
        title="Operators by own time",
        categories=tuple(shown),
        series=tuple(
            Series(stage, tuple(spent[operator] * _SECONDS for operator in shown)) for stage, spent in by_stage.items()
        ),
        kind=Kind.SECONDS,
        is_stacked=True,
        caption="From a pass of its own under torch's profiler, which slows down what it watches.",
    )


def memory_bars(pages: Sequence[PageMeasurement]) -> BarChart:
    """What the process held before each page, and the most while it was measured."""
    shown = pages[:_PAGES_SHOWN]
    series = [
        Series("resident before", tuple(page.start_process_bytes for page in shown)),
        Series("peak of the process", tuple(page.peak_process_bytes for page in shown)),
    ]
    if any(page.peak_device_bytes is not None for page in shown):
        series.append(Series("peak of the device's allocator", tuple(page.peak_device_bytes for page in shown)))
    return BarChart(
        title="Memory",
        categories=tuple(f"{place + 1}: {page.image}" for place, page in enumerate(shown)),
        series=tuple(series),
        kind=Kind.BYTES,
        caption=f"The first {_PAGES_SHOWN} pages at most.",
    )
