"""JSON for programs: raw numbers in base units, the unit in the key, `null` for what is not known."""

from __future__ import annotations

import json

from llm_perf_opt.core.report import Axis, BarChart, Cell, Chart, LineChart, Report, SpanChart, Table
from llm_perf_opt.formats.cell_text import UNIT_OF, column_keys
from llm_perf_opt.formats.json_drawing import JsonDrawing


class JsonReport:
    """One object; each row is an object too, so that `jq '.tables[0].rows[].flops'` works."""

    suffix = ".json"

    def render(self, report: Report) -> str:
        """The report as indented ASCII, ending with a newline."""
        return json.dumps(_report_object(report), indent=2, allow_nan=False) + "\n"


def _report_object(report: Report) -> dict[str, object]:
    return {
        "title": report.title,
        "tables": [_table_object(table) for table in report.tables],
        "charts": [_chart_object(chart) for chart in report.charts],
        "graph": None if report.graph is None else json.loads(JsonDrawing().render(report.graph)),
        "notes": [{"level": note.level.value, "text": note.text} for note in report.notes],
        "chapters": [_report_object(chapter) for chapter in report.chapters],
    }


def _table_object(table: Table) -> dict[str, object]:
    keys = column_keys(table.columns)
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    footer: dict[str, Cell] | None = dict(zip(keys, table.footer, strict=True)) if table.footer else None
    return {"title": table.title, "rows": rows, "total": footer}


def _chart_object(chart: Chart) -> dict[str, object]:
    match chart:
        case BarChart():
            return {
                "type": "bar",
                "title": chart.title,
                "caption": chart.caption,
                "unit": UNIT_OF.get(chart.kind),
                "is_stacked": chart.is_stacked,
                "categories": list(chart.categories),
                "series": [{"name": series.name, "values": list(series.values)} for series in chart.series],
            }
        case LineChart():
            lines = [{"name": line.name, "style": line.style, "points": line.points} for line in chart.lines]
            return {
                "type": "line",
                "title": chart.title,
                "caption": chart.caption,
                "x": _axis_object(chart.x),
                "y": _axis_object(chart.y),
                "lines": lines,
                "marks": [{"x": mark.x, "y": mark.y, "text": mark.text} for mark in chart.marks],
            }
        case SpanChart():
            spans = [
                {"lane": span.lane, "name": span.name, "start": span.start, "end": span.end} for span in chart.spans
            ]
            return {
                "type": "span",
                "title": chart.title,
                "caption": chart.caption,
                "axis": _axis_object(chart.axis),
                "spans": spans,
            }


def _axis_object(axis: Axis) -> dict[str, object]:
    return {"name": axis.name, "unit": UNIT_OF.get(axis.kind), "is_log": axis.is_log}
