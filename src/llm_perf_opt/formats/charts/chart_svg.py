"""A chart as an SVG element for a page that has a style for it (`formats/report_page/charts.css`)."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.core.report import BarChart, Chart, LineChart, SpanChart
from llm_perf_opt.formats.charts.bar_svg import bar_picture
from llm_perf_opt.formats.charts.line_svg import line_picture
from llm_perf_opt.formats.charts.picture import NARROW, WIDE, Hues, Picture
from llm_perf_opt.formats.charts.span_svg import span_picture
from llm_perf_opt.formats.svg_style import escaped, number


@dataclass(frozen=True, slots=True)
class ChartSvg:
    """The chart for a wide page and for a phone, and what it could not draw.

    Two pictures, since one that is made smaller becomes one with letters that are too small.
    """

    wide: str
    narrow: str
    remarks: tuple[str, ...]


def chart_svg(chart: Chart, hues: Hues) -> ChartSvg:
    """The same chart gives the same text."""
    wide, narrow = (_picture(chart, hues, width) for width in (WIDE, NARROW))
    return ChartSvg(_element(chart, wide, "wide"), _element(chart, narrow, "narrow"), wide.remarks)


def _picture(chart: Chart, hues: Hues, width: float) -> Picture:
    match chart:
        case BarChart():
            return bar_picture(chart, hues, width)
        case LineChart():
            return line_picture(chart, hues, width)
        case SpanChart():
            return span_picture(chart, hues, width)


def _element(chart: Chart, picture: Picture, classes: str) -> str:
    size = f"{number(picture.width)} {number(picture.height)}"
    width, height = size.split()
    described = f"<desc>{escaped(chart.caption)}</desc>" if chart.caption else ""
    return (
        f'<svg class="{classes}" viewBox="0 0 {size}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escaped(chart.title)}">{described}{picture.elements}</svg>'
    )
