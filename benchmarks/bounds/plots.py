"""The bound's plots as files of their own, drawn by the project's charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.core.report import Axis, BarChart, Chart, Kind, Line, LineChart, Series
from llm_perf_opt.formats.charts.chart_svg import chart_svg
from llm_perf_opt.formats.charts.picture import Hues

ENGINES = ("vllm", "sglang", "trtllm")
_LIGHT = {"ink": "#1b1f27", "soft": "#566072", "rule": "#d5d9e0", "line": "#7c8799", "surface": "#ffffff"}
_DARK = {"ink": "#e8ebf1", "soft": "#a3adbd", "rule": "#343b48", "line": "#8491a6", "surface": "#1a1e26"}
_HUES = ("#0b6bb5", "#c2570c", "#0f7f5f", "#7a3fb0", "#9a7400", "#b02a6b", "#4d6370")
_HUES_ON_DARK = ("#58a9e8", "#f0944d", "#3fbf98", "#b88ae6", "#d9b13b", "#e678ad", "#93aab8")


def by_system(groups: Sequence[dict[str, Any]]) -> BarChart:
    """Median of measured over expected floor for each model, system and engine, the nearest to the floor first."""
    ordered = sorted(groups, key=lambda group: float(group["median"]))
    return BarChart(
        title="Measured time of a request over the expected floor, median",
        categories=tuple(f"{group['model']}, {group['device']}, {group['engine']}" for group in ordered),
        series=(Series("measured / expected floor", tuple(group["median"] for group in ordered)),),
        kind=Kind.COUNT,
        caption="1 is the floor: everything above it is what an engineer can still win.",
    )


def distribution(ratios: Mapping[str, Sequence[float]]) -> LineChart:
    """Which share of the runs lies below a multiple of the floor, a line for each engine."""
    return LineChart(
        title="Share of measured runs below a multiple of the expected floor",
        x=Axis("measured time of a request over the expected floor", Kind.COUNT, is_log=True),
        y=Axis("share of the runs", Kind.RATIO),
        lines=tuple(Line(engine, tuple(_cumulated(values))) for engine, values in ratios.items()),
        caption="No run lies left of 1.",
    )


def _cumulated(values: Sequence[float], points: int = 60) -> list[tuple[float, float]]:
    """At most so many points of the distribution, the lowest and the highest among them."""
    ordered = sorted(values)
    places = sorted({round(place * (len(ordered) - 1) / (points - 1)) for place in range(points)})
    return [(ordered[place], (place + 1) / len(ordered)) for place in places]


def svg_file(chart: Chart) -> str:
    """The wide picture with a style of its own, light or dark as the reader's system asks."""
    element = chart_svg(chart, Hues()).wide
    head, _, body = element.partition(">")
    namespace = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f'{namespace}><style>{_style()}</style><rect class="page" width="100%" height="100%"/>{body}\n'


def _style() -> str:
    return f"{_rules(_LIGHT, _HUES)}@media (prefers-color-scheme: dark) {{{_rules(_DARK, _HUES_ON_DARK)}}}"


def _rules(colours: dict[str, str], hues: Sequence[str]) -> str:
    ink, soft, rule = colours["ink"], colours["soft"], colours["rule"]
    plain = (
        f"text{{font-family:system-ui,sans-serif;fill:{ink}}}text.soft{{fill:{soft}}}"
        f".page{{fill:{colours['surface']}}}.grid{{stroke:{rule};fill:none}}.zero{{stroke:{colours['line']};fill:none}}"
        f".curve{{fill:none;stroke-width:2}}.mark{{fill:{ink}}}.thread{{stroke:{colours['line']};fill:none}}"
    )
    coloured = "".join(
        f".hue-{number} .bar,.hue-{number} .dot{{fill:{hue}}}.hue-{number} .curve{{stroke:{hue}}}"
        for number, hue in enumerate(hues)
    )
    return plain + coloured
