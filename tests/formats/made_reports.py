"""Reports made by hand: one with every kind of chart in chapters, one full of hostile names, charts at their limits."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from llm_perf_opt.core.report import (
    Axis,
    BarChart,
    Chart,
    Column,
    Kind,
    Level,
    Line,
    LineChart,
    Mark,
    Note,
    Report,
    Series,
    Span,
    SpanChart,
    Table,
)
from tests.formats.drawings.made_views import HOSTILE_NAMES, deepseek_ocr_view, hostile_view

STAGES = ("sam", "clip", "projector", "prefill", "decode")
FLOPS = (2_371_542_061_056, 1_097_324_003_328, 3_512_729_600, 1_201_400_000_000, 1_241_530_000)
TIMES_S = (0.0412, 0.0208, 0.0009, 0.0671, 0.0098)


def flops_by_stage() -> BarChart:
    return BarChart(
        title="FLOPs by stage",
        categories=STAGES,
        series=(Series("counted", FLOPS),),
        kind=Kind.FLOPS,
        caption="One multiply-add is two FLOPs.",
    )


def flops_by_operator() -> BarChart:
    parts = {"linear": 0.61, "attention": 0.27, "convolution": 0.09, "other": 0.03}
    series = [Series(name, tuple(round(flops * part) for flops in FLOPS)) for name, part in parts.items()]
    return BarChart(
        title="FLOPs by stage and operator", categories=STAGES, series=tuple(series), kind=Kind.FLOPS, is_stacked=True
    )


def source_agreement() -> BarChart:
    return BarChart(
        title="Agreement of sources",
        categories=STAGES,
        series=(
            Series("counted", FLOPS),
            Series("torch-counter", (2_300_000_000_000, 1_097_324_003_328, 3_512_729_600, None, 1_241_530_000)),
            Series("fvcore", (2_100_000_000_000, 900_000_000_000, 3_512_729_600, None, None)),
            Series("closed-form", FLOPS),
        ),
        kind=Kind.FLOPS,
        caption="A question mark: the source could not count the stage.",
    )


def source_differences() -> BarChart:
    return BarChart(
        title="Differences to the count",
        categories=STAGES,
        series=(Series("fvcore", (-0.114, -0.18, 0.0, None, 0.021)),),
        kind=Kind.RATIO,
    )


def memory_timeline(points: int = 4000) -> LineChart:
    noise = random.Random(7)
    heights = [
        round(2**20 * (900 + 2600 * math.exp(-(((step - points * 0.3) / (points * 0.12)) ** 2)) + noise.random() * 420))
        for step in range(points)
    ]
    peak = max(range(points), key=heights.__getitem__)
    return LineChart(
        title="Live activations over the run",
        x=Axis("operation", Kind.COUNT),
        y=Axis("live bytes", Kind.BYTES),
        lines=(Line("prefill", tuple((float(step), float(height)) for step, height in enumerate(heights)), "step"),),
        marks=(Mark(float(peak), float(heights[peak]), "peak in sam_model.blocks.2.attn"),),
    )


def roofline() -> LineChart:
    peak, bandwidth = 989.4e12, 3.35e12
    knee = peak / bandwidth
    names = ("sam", "clip", "projector", "prefill", "decode")
    intensities = (210.0, 320.0, 95.0, 410.0, 1.02)
    achieved = (0.35 * peak, 0.41 * peak, 0.2 * bandwidth * 95, 0.44 * peak, 0.6 * bandwidth)
    return LineChart(
        title="Roofline",
        x=Axis("arithmetic intensity", Kind.FLOPS_PER_BYTE, is_log=True),
        y=Axis("rate", Kind.FLOPS_PER_S, is_log=True),
        lines=(
            Line("attainable", ((0.1, 0.1 * bandwidth), (knee, peak), (10_000.0, peak))),
            Line("half of it", ((0.1, 0.05 * bandwidth), (knee, peak / 2), (10_000.0, peak / 2)), "dashed"),
            Line("achieved", tuple(zip(intensities, achieved, strict=True)), "scatter"),
        ),
        marks=tuple(Mark(x, y, name) for name, x, y in zip(names, intensities, achieved, strict=True)),
        caption="H100 SXM, bfloat16, dense.",
    )


def latency_distribution() -> LineChart:
    noise = random.Random(3)
    samples = sorted(0.0098 + abs(noise.gauss(0, 0.0004)) for _ in range(64))
    points = tuple((sample, (place + 1) / len(samples)) for place, sample in enumerate(samples))
    return LineChart(
        title="Decode latency",
        x=Axis("time per token", Kind.SECONDS),
        y=Axis("share of tokens at most as slow", Kind.RATIO),
        lines=(Line("measured", points, "step"), Line("speed of light", ((0.0095, 0.0), (0.0095, 1.0)), "dashed")),
        marks=(Mark(samples[32], 33 / 64, "median"), Mark(samples[60], 61 / 64, "95th percentile")),
    )


def waterfall() -> SpanChart:
    spans, start = [], 0.0
    for stage, length in zip(STAGES, TIMES_S, strict=True):
        spans.append(Span(stage, stage, start, start + length))
        start += length
    return SpanChart(title="Where the time goes", axis=Axis("time since the start", Kind.SECONDS), spans=tuple(spans))


def stage_table() -> Table:
    columns = (
        Column("stage"),
        Column("calls", Kind.COUNT),
        Column("FLOPs", Kind.FLOPS),
        Column("bytes moved", Kind.BYTES),
        Column("time", Kind.SECONDS),
        Column("rate", Kind.FLOPS_PER_S),
        Column("bandwidth", Kind.BYTES_PER_S),
        Column("intensity", Kind.FLOPS_PER_BYTE),
        Column("MFU", Kind.RATIO),
        Column("bound by"),
    )
    rows = []
    for place, (stage, flops, time_s) in enumerate(zip(STAGES, FLOPS, TIMES_S, strict=True)):
        size = flops // (40 * (place + 1))
        rows.append(
            (
                stage,
                1 + place * 137,
                flops,
                size,
                time_s,
                flops / time_s,
                size / time_s,
                flops / size,
                None if stage == "projector" else flops / time_s / 989.4e12,
                "compute" if place < 4 else "launches",
            )
        )
    total = ("total", sum(row[1] for row in rows), sum(FLOPS), sum(row[3] for row in rows), sum(TIMES_S))
    return Table(
        title="Per stage",
        columns=columns,
        rows=tuple(rows),
        footer=(*total, sum(FLOPS) / sum(TIMES_S), None, None, None, ""),
    )


def operator_table(rows: int = 60) -> Table:
    columns = (Column("operator"), Column("module"), Column("calls", Kind.COUNT), Column("FLOPs", Kind.FLOPS))
    body = tuple(
        (f"aten.op_{row}", f"model.layers.{row % 12}.mlp.experts.{row}.gate_proj", row + 1, 10**12 // (row + 1))
        for row in range(rows)
    )
    return Table(title="Operators", columns=columns, rows=body)


def full_report() -> Report:
    """Every chart, a picture, long and wide tables, notes of both levels, chapters in chapters."""
    return Report(
        title="deepseek-ocr, a page of 1240x1754 on H100 SXM",
        tables=(
            Table(
                title="In short",
                columns=(Column("question"), Column("answer")),
                rows=(("Does it fit?", "yes, in 80 GiB"),),
            ),
        ),
        notes=(Note("Weights are random; no figure depends on their values."),),
        chapters=(
            Report(title="What runs", graph=deepseek_ocr_view(), notes=(Note("4,068 modules in 37 boxes."),)),
            Report(
                title="What it costs",
                charts=(flops_by_stage(), flops_by_operator()),
                tables=(stage_table(), operator_table()),
                notes=(
                    Note("One multiply-add is two FLOPs."),
                    Note("2 operators have no price; at most 0.3 % of the FLOPs may be missing.", Level.WARNING),
                ),
                chapters=(
                    Report(title="Do the sources agree?", charts=(source_agreement(), source_differences())),
                    Report(title="Memory", charts=(memory_timeline(),)),
                ),
            ),
            Report(
                title="How fast could it be?",
                charts=(roofline(), waterfall(), latency_distribution()),
                notes=(Note("The decode band rests on 3 published runs.", Level.WARNING),),
            ),
        ),
    )


def hostile_report() -> Report:
    """Every hostile name in every place where a name can stand."""
    values = tuple(range(len(HOSTILE_NAMES)))
    columns = (
        Column("name"),
        Column("value", Kind.COUNT),
        *(Column(f"{n} {name}") for n, name in enumerate(HOSTILE_NAMES)),
    )
    return Report(
        title=HOSTILE_NAMES[0],
        tables=(
            Table(
                title=HOSTILE_NAMES[9],
                columns=columns,
                rows=tuple((name, value, *HOSTILE_NAMES) for name, value in zip(HOSTILE_NAMES, values, strict=True)),
            ),
        ),
        charts=tuple(hostile_charts()),
        graph=hostile_view(),
        notes=tuple(Note(name or "(empty)", Level.WARNING) for name in HOSTILE_NAMES),
        chapters=tuple(Report(title=name) for name in HOSTILE_NAMES),
    )


def hostile_charts() -> list[Chart]:
    numbers = tuple(float(value) for value in range(len(HOSTILE_NAMES)))
    series = tuple(Series(name, numbers) for name in HOSTILE_NAMES[:3])
    lines = tuple(Line(name, tuple(zip(numbers, numbers, strict=True)), "scatter") for name in HOSTILE_NAMES[:3])
    marks = tuple(Mark(number, number, name) for number, name in zip(numbers, HOSTILE_NAMES, strict=True))
    axis = Axis(HOSTILE_NAMES[0], Kind.COUNT)
    spans = tuple(Span(name, name, number, number + 1) for number, name in zip(numbers, HOSTILE_NAMES, strict=True))
    name = HOSTILE_NAMES[0]
    return [
        BarChart(title=name, categories=HOSTILE_NAMES, series=series, kind=Kind.COUNT, caption=name),
        LineChart(title=name, x=axis, y=axis, lines=lines, marks=marks, caption=name),
        SpanChart(title=name, axis=axis, spans=spans, caption=name),
    ]


LOG = Axis("bytes", Kind.BYTES, is_log=True)
EVEN = Axis("step", Kind.COUNT)
SECONDS = Axis("time", Kind.SECONDS)


def limit_charts() -> dict[str, Chart]:
    """Charts at the edge of what can be drawn, each under the name of what is odd about it."""
    return {chart.title: chart for chart in (*limit_bars(), *limit_lines(), *limit_spans())}


def limit_bars() -> list[BarChart]:
    def bars(title: str, *values: int | None, kind: Kind = Kind.FLOPS) -> BarChart:
        return BarChart(title=title, categories=tuple("abc"[: len(values)]), series=(Series("s", values),), kind=kind)

    long = tuple(f"a_very_long_name_of_an_operator_number_{n}_with_a_tail" for n in range(80))
    parts = (Series("s", (1, None)), Series("t", (2, 3)))
    return [
        BarChart(title="no category", categories=(), series=(), kind=Kind.FLOPS),
        BarChart(title="no series", categories=("a",), series=(), kind=Kind.FLOPS),
        bars("all unknown", None, None),
        bars("all zero", 0, 0, kind=Kind.BYTES),
        bars("huge range", 1, 10**25, 0),
        BarChart(title="long names", categories=long, series=(Series("s", tuple(range(80))),), kind=Kind.COUNT),
        BarChart(title="stack with a hole", categories=("a", "b"), series=parts, kind=Kind.SECONDS, is_stacked=True),
    ]


def limit_lines() -> list[LineChart]:
    def line(title: str, x: Axis, y: Axis, *points: tuple[float, float], style: str = "line") -> LineChart:
        return LineChart(title=title, x=x, y=y, lines=(Line("l", points, style),))

    rate, share = Axis("rate", Kind.FLOPS_PER_S, is_log=True), Axis("share", Kind.RATIO, is_log=True)
    some = line("zero on a log axis", LOG, LOG, (0.0, 0.0), (10.0, 5.0), (1e12, 1e9))
    crowd = tuple(Mark(5.0, 5.0, f"mark number {n}") for n in range(40))
    return [
        LineChart(title="no line", x=EVEN, y=EVEN, lines=()),
        line("one point", EVEN, LOG, (3.0, 1024.0)),
        line("one height", EVEN, EVEN, (0.0, 5.0), (9.0, 5.0)),
        line("all at zero", EVEN, EVEN, (0.0, 0.0), (0.0, 0.0), style="step"),
        replace(some, marks=(Mark(0.0, 1.0, "gone"),)),
        line("nothing above zero", EVEN, LOG, (1.0, 0.0), (2.0, -1.0)),
        line("sixty decades", rate, share, (1e-30, 1e-30), (1e30, 1e30)),
        line("short log axis", Axis("x", Kind.COUNT, is_log=True), EVEN, (3.0, 1.0), (7.0, 2.0)),
        LineChart(title="crowded marks", x=EVEN, y=EVEN, lines=(), marks=crowd),
        line("below zero", EVEN, Axis("change", Kind.RATIO), (0.0, -0.5), (1.0, -0.25)),
    ]


def limit_spans() -> list[SpanChart]:
    many = tuple(Span("lane", f"span {n}", n * 1e-6, n * 1e-6 + 1e-5) for n in range(12))
    two = (Span("a", "a", 0.0, 1e-6), Span("b", "b", 1e-6, 1.0))
    return [
        SpanChart(title="no span", axis=SECONDS, spans=()),
        SpanChart(title="no length", axis=SECONDS, spans=(Span("a", "b", 0.0, 0.0),)),
        SpanChart(title="overlapping spans", axis=SECONDS, spans=many),
        SpanChart(title="spans on a log axis", axis=replace(SECONDS, is_log=True), spans=two),
    ]


def limits_report() -> Report:
    return Report(title="At the limits", charts=tuple(limit_charts().values()))
