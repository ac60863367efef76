"""Charts: figures at the right place, labels apart, nothing outside the picture, nothing left out in silence."""

from __future__ import annotations

import math
import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.report import (
    LINE_STYLES,
    Axis,
    BarChart,
    Chart,
    Kind,
    Line,
    LineChart,
    Mark,
    Report,
    Series,
    Span,
    SpanChart,
)
from llm_perf_opt.formats.chart_svg import ChartSvg, chart_svg
from llm_perf_opt.formats.chart_table import full_tables, short_tables
from llm_perf_opt.formats.line_svg import stepped, thinned
from llm_perf_opt.formats.picture import (
    SIZE,
    Hues,
    Range,
    Scale,
    hues_of,
    log_range,
    range_around,
    range_from_zero,
    ticks,
)
from llm_perf_opt.formats.visible_text import text_width
from tests.examples import examples
from tests.formats import made_reports
from tests.formats.drawings.made_views import deepseek_ocr_view

MADE = {
    chart.title: chart
    for chart in (
        made_reports.flops_by_stage(),
        made_reports.flops_by_operator(),
        made_reports.source_agreement(),
        made_reports.source_differences(),
        made_reports.memory_timeline(),
        made_reports.roofline(),
        made_reports.latency_distribution(),
        made_reports.waterfall(),
    )
}
LIMITS = made_reports.limit_charts()
HOSTILE = {f"hostile {number}": chart for number, chart in enumerate(made_reports.hostile_charts())}
ALL = {**MADE, **LIMITS, **HOSTILE}


def drawn(chart: Chart) -> ChartSvg:
    return chart_svg(chart, Hues())


def elements(svg: str, tag: str, classes: str = "") -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(tag)
    return [element for element in found if set(classes.split()) <= set(element.get("class", "").split())]


def text_area(element: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right, bottom as a wide font would need it."""
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    width = text_width(element.text or "", float(element.attrib["font-size"]))
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[element.get("text-anchor", "start")] * width
    return left, y - SIZE, left + width, y + 2


@pytest.mark.parametrize("chart", ALL.values(), ids=ALL)
def test_every_number_of_a_picture_is_finite_and_every_element_inside(chart: Chart) -> None:
    check_inside(chart)


def check_inside(chart: Chart) -> None:
    for svg in (drawn(chart).wide, drawn(chart).narrow):
        root = ElementTree.fromstring(svg)
        width, height = (float(root.attrib[name]) for name in ("width", "height"))
        assert not re.search(r'="[^"]*\b(?:nan|inf)\b[^"]*"', re.sub(r'aria-label="[^"]*"', "", svg))
        for element in root.iter("text"):
            left, top, right, bottom = text_area(element)
            assert left >= -1 and right <= width + 1, (element.text, left, right)
            assert top >= -3 and bottom <= height + 1, (element.text, top, bottom)
        for element in root.iter("rect"):
            left, across = float(element.attrib["x"]), float(element.attrib["width"])
            assert left >= 0 and across >= 0 and left + across <= width + 2


@pytest.mark.parametrize("chart", ALL.values(), ids=ALL)
def test_no_label_of_an_axis_or_mark_covers_another(chart: Chart) -> None:
    for svg in (drawn(chart).wide, drawn(chart).narrow):
        for classes in ("tick", "mark-name", "label"):
            areas = [text_area(element) for element in elements(svg, "text", classes)]
            for one, other in combinations(areas, 2):
                apart_across = one[0] >= other[2] or other[0] >= one[2]
                apart_up = one[1] >= other[3] - 3 or other[1] >= one[3] - 3
                assert apart_across or apart_up, (classes, one, other)


KINDS = st.sampled_from([kind for kind in Kind if kind is not Kind.TEXT])
NUMBERS = st.floats(-1e30, 1e30) | st.floats(1e-12, 1e3) | st.just(0.0)
NAMES = st.text(max_size=40)
AXES = st.builds(Axis, NAMES, KINDS, st.booleans())


@st.composite
def charts(draw: st.DrawFn) -> Chart:
    form = draw(st.sampled_from(["bar", "line", "span"]))
    if form == "bar":
        count, is_stacked = draw(st.integers(0, 5)), draw(st.booleans())
        values = st.none() | (st.floats(0, 1e30) if is_stacked else NUMBERS)
        series = st.builds(Series, NAMES, st.tuples(*[values] * count))
        names = tuple(draw(st.lists(NAMES, min_size=count, max_size=count)))
        parts = tuple(draw(st.lists(series, max_size=9)))
        return BarChart(title="t", categories=names, series=parts, kind=draw(KINDS), is_stacked=is_stacked)
    if form == "line":
        points = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12).map(lambda pairs: tuple(sorted(pairs)))
        lines = st.lists(st.builds(Line, NAMES, points, st.sampled_from(LINE_STYLES)), max_size=3).map(tuple)
        marks = st.lists(st.builds(Mark, NUMBERS, NUMBERS, NAMES), max_size=4).map(tuple)
        return LineChart(title="t", x=draw(AXES), y=draw(AXES), lines=draw(lines), marks=draw(marks))
    ends = st.tuples(NUMBERS, NUMBERS).map(sorted)
    spans = st.builds(lambda lane, name, end: Span(lane, name, *end), NAMES, NAMES, ends)
    return SpanChart(title="t", axis=draw(AXES), spans=tuple(draw(st.lists(spans, max_size=6))))


SMALLEST = 5e-324  # the least a float holds: half of it is zero
CLOSE = (1e30, math.nextafter(1e30, math.inf))


def line_chart(*points: tuple[float, float]) -> LineChart:
    return LineChart(title="t", x=Axis("x", Kind.BYTES), y=Axis("y", Kind.RATIO), lines=(Line("l", points),))


@settings(max_examples=examples(80), deadline=None)
@given(chart=charts())
@example(BarChart(title="t", categories=("", ""), series=(Series("", (None, SMALLEST)),), kind=Kind.COUNT))
@example(line_chart((2 * SMALLEST, 2 * SMALLEST)))
@example(line_chart((0.0, -SMALLEST), (2 * SMALLEST, SMALLEST)))
@example(line_chart((CLOSE[0], -CLOSE[0]), (CLOSE[1], CLOSE[1])))
def test_any_chart_is_drawn_inside_its_picture(chart: Chart) -> None:
    check_inside(chart)
    assert drawn(chart) == drawn(chart)


def test_bars_are_as_long_as_their_values() -> None:
    svg = drawn(made_reports.flops_by_stage()).wide
    widths = [float(bar.attrib["width"]) for bar in elements(svg, "rect", "bar")]
    assert widths[1] / widths[0] == pytest.approx(1_097_324_003_328 / 2_371_542_061_056, abs=1e-3)
    assert min(widths) >= 1.5  # a thousandth of the longest can still be seen
    assert [element.text for element in elements(svg, "text", "value")][:2] == ["2.37 TFLOP", "1.10 TFLOP"]


def test_parts_of_a_stack_follow_each_other_and_their_sum_stands_behind() -> None:
    chart = BarChart(
        title="t", categories=("a",), series=(Series("x", (3,)), Series("y", (1,))), kind=Kind.BYTES, is_stacked=True
    )
    first, second = elements(drawn(chart).wide, "rect", "bar")[2:]  # the first two are the legend
    assert float(first.attrib["x"]) + float(first.attrib["width"]) == pytest.approx(float(second.attrib["x"]), abs=0.02)
    assert float(first.attrib["width"]) / float(second.attrib["width"]) == pytest.approx(3, rel=1e-2)
    assert [element.text for element in elements(drawn(chart).wide, "text", "value")] == ["4 B"]


def test_a_bar_below_zero_ends_where_one_above_begins() -> None:
    chart = BarChart(title="t", categories=("a", "b"), series=(Series("s", (-0.5, 0.25)),), kind=Kind.RATIO)
    below, above = elements(drawn(chart).wide, "rect", "bar")
    assert float(below.attrib["x"]) + float(below.attrib["width"]) == pytest.approx(float(above.attrib["x"]), abs=0.02)
    assert float(below.attrib["width"]) == pytest.approx(2 * float(above.attrib["width"]), rel=1e-3)


def test_the_unknown_has_a_question_mark_and_zero_has_a_zero() -> None:
    chart = BarChart(title="t", categories=("a", "b"), series=(Series("s", (None, 0)),), kind=Kind.FLOPS)
    svg = drawn(chart).wide
    assert [element.text for element in elements(svg, "text", "value")] == ["?", "0 FLOP"]
    assert elements(svg, "rect", "bar") == []
    assert "3.00 s + ?" in drawn(LIMITS["stack with a hole"]).wide


def test_a_stack_of_more_parts_than_colours_draws_the_smaller_ones_together() -> None:
    series = tuple(Series(f"part {n}", (n, None if n == 3 else 1)) for n in range(20))
    chart = BarChart(title="t", categories=("a", "b"), series=series, kind=Kind.COUNT, is_stacked=True)
    svg = drawn(chart).wide
    keys = [element.text for element in elements(svg, "text", "key")]
    assert keys == ["part 14", "part 15", "part 16", "part 17", "part 18", "part 19", "14 others"]
    assert [element.text for element in elements(svg, "text", "value")] == [str(sum(range(20))), "19 + ?"]
    assert drawn(chart).remarks == ("The 14 smallest series are drawn as one; the table has each of them.",)


@pytest.mark.parametrize("name", ["no category", "no series", "no line", "nothing above zero", "no span"])
def test_an_empty_chart_says_so(name: str) -> None:
    assert "Nothing to draw." in drawn(LIMITS[name]).wide


def test_one_point_is_a_dot() -> None:
    assert len(elements(drawn(LIMITS["one point"]).wide, "circle", "dot")) == 1


def test_what_is_not_drawn_is_told() -> None:
    assert drawn(LIMITS["zero on a log axis"]).remarks == (
        "2 points at or below zero have no place on a logarithmic axis.",
    )
    assert drawn(LIMITS["long names"]).remarks == ("20 more categories are in the table only.",)
    assert "and 21 more in the table" in drawn(LIMITS["crowded marks"]).narrow
    assert drawn(made_reports.roofline()).remarks == ()


def test_decades_are_equally_far_apart_on_a_log_axis() -> None:
    labels = elements(drawn(made_reports.roofline()).wide, "text", "tick")
    across = [float(label.attrib["x"]) for label in labels if label.get("text-anchor") == "middle"]
    assert [label.text for label in labels if label.get("text-anchor") == "middle"] == [
        "0.1",
        "1",
        "10",
        "100",
        "1 k",
        "10 k",
    ]
    gaps = [after - before for before, after in pairwise(across)]
    assert gaps == pytest.approx([gaps[0]] * len(gaps), abs=0.02)


def test_an_axis_of_powers_of_two_names_every_digit() -> None:
    shown = log_range([1024, 131_072], 2)
    texts = ["1,024", "2,048", "4,096", "8,192", "16,384", "32,768", "65,536", "131,072"]
    assert [tick.text for tick in ticks(Kind.COUNT, shown, 10)] == texts
    assert [tick.text for tick in ticks(Kind.COUNT, shown, 4)] == ["1,024", "4,096", "16,384", "65,536"]
    assert [tick.text for tick in ticks(Kind.COUNT, log_range([1, 512], 2), 5)] == ["1", "4", "16", "64", "256"]


def test_lines_of_one_family_have_one_colour() -> None:
    lines = [Line(name, ((1, 1), (2, place)), family=name[:1]) for place, name in enumerate(("a1", "b1", "a2"), 1)]
    chart = LineChart(title="t", x=Axis("x", Kind.COUNT), y=Axis("y", Kind.COUNT), lines=tuple(lines))
    curves = re.findall(r'<g class="hue-(\d)"><title>(\w+)</title>', chart_svg(chart, Hues()).wide)
    assert curves == [("0", "a1"), ("1", "b1"), ("0", "a2")]


def test_a_roofline_bends_at_the_ridge() -> None:
    (way,) = [path.attrib["d"] for path in elements(drawn(made_reports.roofline()).wide, "path", "curve line")][-1:]
    assert re.fullmatch(r"M[\d.]+ [\d.]+L[\d.]+ [\d.]+H[\d.]+", way)


def test_spans_lie_where_they_last() -> None:
    bars = elements(drawn(made_reports.waterfall()).wide, "rect", "bar")
    edges = [(float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in bars]
    assert edges[0][0] + edges[0][1] == pytest.approx(edges[1][0], abs=0.02)
    assert edges[0][1] / edges[3][1] == pytest.approx(0.0412 / 0.0671, rel=1e-3)


def test_spans_of_one_lane_never_cover_each_other() -> None:
    bars = elements(drawn(LIMITS["overlapping spans"]).wide, "rect", "bar")
    areas = [[float(bar.attrib[name]) for name in ("x", "y", "width")] for bar in bars]
    for (x, y, width), (other_x, other_y, other_width) in combinations(areas, 2):
        assert y != other_y or x + width <= other_x or other_x + other_width <= x


@pytest.mark.parametrize(
    ("kind", "shown", "most", "texts"),
    [
        (Kind.FLOPS, Range(0, 2.4e12), 5, ["0", "0.5 TFLOP", "1.0 TFLOP", "1.5 TFLOP", "2.0 TFLOP"]),
        (Kind.BYTES, Range(0, 3 * 2**30), 4, ["0", "1 GiB", "2 GiB", "3 GiB"]),
        (Kind.SECONDS, Range(0, 0.0042), 5, ["0", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (Kind.RATIO, Range(-0.2, 0.1), 4, ["-20 %", "-10 %", "0", "10 %"]),
        (Kind.COUNT, Range(0, 3), 9, ["0", "1", "2", "3"]),
        (Kind.COUNT, Range(0, 4000), 3, ["0", "2,000", "4,000"]),
        (Kind.COUNT, Range(0, 40_000), 3, ["0", "20 k", "40 k"]),
        (Kind.FLOPS_PER_S, Range(1e12, 1e15, is_log=True), 5, ["1 TFLOP/s", "10 TFLOP/s", "100 TFLOP/s", "1 PFLOP/s"]),
        (Kind.BYTES, Range(1024, 2**30, is_log=True), 3, ["1 KiB", "1 MiB", "1 GiB"]),
        (Kind.SECONDS, Range(1e-3, 1e-2, is_log=True), 6, ["1 ms", "2 ms", "5 ms", "10 ms"]),
    ],
)
def test_labels_are_round(kind: Kind, shown: Range, most: int, texts: list[str]) -> None:
    assert [tick.text for tick in ticks(kind, shown, most)] == texts


@settings(max_examples=examples(100), deadline=None)
@given(
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.TEXT]),
    low=st.floats(-1e18, 1e18),
    length=st.floats(1e-6, 1e20),
    most=st.integers(1, 12),
)
def test_labels_lie_in_the_range_and_are_no_more_than_asked(kind: Kind, low: float, length: float, most: int) -> None:
    shown = Range(low, low + max(length, abs(low) * 1e-6))
    found = ticks(kind, shown, most)
    slack = (shown.high - shown.low) * 1e-6
    assert len(found) <= most
    assert all(shown.low - slack <= tick.value <= shown.high + slack for tick in found)
    assert [tick.value for tick in found] == sorted(tick.value for tick in found)


def test_a_scale_holds_its_ends_and_its_middle() -> None:
    assert [Scale(Range(0, 10), 100, 200).at(value) for value in (0, 5, 10, 99)] == [100, 150, 200, 200]
    assert Scale(Range(1, 100, is_log=True), 0, 10).at(10) == pytest.approx(5)


@pytest.mark.parametrize(
    "values", [[0.0], [5.0], [-5.0], [0.0, 0.0], [1e300, 1e-300], [5e-324], [0.0, 5e-324], [-1e-323, 1e-323]]
)
def test_a_range_is_never_empty(values: list[float]) -> None:
    for found in (range_from_zero(values), range_around(values, is_padded=True), log_range(values)):
        assert found.low < found.high
        assert math.isfinite(Scale(found, 0, 1).at(values[0] if found.shows(values[0]) else found.low))


def test_thinning_keeps_every_extreme() -> None:
    points = [(place / 50, float((place * 7919) % 1000)) for place in range(20_000)]
    kept = thinned(points)
    assert len(kept) <= 4 * 401
    assert set(kept) <= set(points)
    for column in range(400):
        before = [y for x, y in points if int(x) == column]
        after = [y for x, y in kept if int(x) == column]
        assert (min(before), max(before)) == (min(after), max(after))


def test_a_step_holds_its_value_until_the_next_point() -> None:
    assert stepped([(0, 5), (2, 9), (3, 1)]) == [(0, 5), (2, 5), (2, 9), (3, 9), (3, 1)]


def test_a_stage_has_the_colour_it_has_in_the_graph() -> None:
    report = Report(title="r", chapters=(Report(title="c", graph=deepseek_ocr_view()),))
    hues = hues_of(report)
    assert hues.stages == {"prefill": 0, "sam": 1, "clip": 2}
    assert hues.of(["sam", "clip", "projector", "prefill", "decode"]) == [1, 2, 3, 0, 4]
    assert hues.of(["counted", "fvcore"]) == [0, 1]


def test_tables_of_a_chart_hold_its_numbers() -> None:
    (wide,) = short_tables(made_reports.source_agreement())
    assert [column.name for column in wide.columns] == ["category", "counted", "torch-counter", "fvcore", "closed-form"]
    assert wide.rows[3][2] is None
    (long,) = full_tables(made_reports.source_agreement())
    assert len(long.rows) == 5 * 4
    extremes, marks = short_tables(made_reports.memory_timeline())
    heights = [y for _, y in made_reports.memory_timeline().lines[0].points]
    assert extremes.rows == (("prefill", 4000, 0.0, 3999.0, min(heights), max(heights)),)
    assert marks.rows[0][2] == max(heights)


def test_two_series_of_one_name_are_two_columns() -> None:
    chart = BarChart(title="t", categories=("a",), series=(Series("s", (1,)), Series("s", (2,))), kind=Kind.COUNT)
    assert [column.name for column in short_tables(chart)[0].columns] == ["category", "s", "s (2)"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Series("s", (math.nan,)),
        lambda: Line("l", ((0.0, math.inf),)),
        lambda: Line("l", ((1.0, 0.0), (0.0, 0.0))),
        lambda: Line("l", (), "dotted"),
        lambda: Mark(math.nan, 0.0, "m"),
        lambda: Span("l", "n", 1.0, 0.0),
        lambda: BarChart(title="t", categories=("a",), series=(Series("s", ()),), kind=Kind.COUNT),
        lambda: BarChart(title="t", categories=("a",), series=(Series("s", (-1,)),), kind=Kind.COUNT, is_stacked=True),
    ],
)
def test_what_cannot_be_drawn_is_refused_where_it_is_born(make: object) -> None:
    with pytest.raises(ValueError, match=r"'[a-z]'"):
        make()  # type: ignore[operator]


def test_a_scatter_may_run_backwards() -> None:
    chart = LineChart(
        title="t",
        x=Axis("x", Kind.COUNT),
        y=Axis("y", Kind.COUNT),
        lines=(Line("l", ((2.0, 1.0), (1.0, 1.0)), "scatter"),),
    )
    assert len(elements(drawn(chart).wide, "circle", "dot")) == 2
