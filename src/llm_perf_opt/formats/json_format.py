"""JSON for programs: raw numbers in base units, the unit in the key, `null` for what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import UNSET

from llm_perf_opt.core.graph_metric import metric_named
from llm_perf_opt.core.graph_view import Box, GraphView
from llm_perf_opt.core.output_files import plain_values
from llm_perf_opt.core.record_fields import all_filled, filled
from llm_perf_opt.core.report import Axis, BarChart, Cell, Chart, LineChart, Report, SpanChart, Table
from llm_perf_opt.core.sealing import sealed_text
from llm_perf_opt.formats.view_file import (
    VIEW_VERSION,
    ArrowRow,
    BoxRow,
    CollectivesRow,
    FiguresRow,
    LoopRow,
    TensorsRow,
    ViewFile,
)
from llm_perf_opt.formats.visible_text import UNIT_OF, column_keys


class JsonDrawing:
    """Holds every figure, so the metric changes nothing in it."""

    suffix = ".view.json"

    def __init__(self, metric: str = "flops") -> None:
        metric_named(metric)

    def render(self, view: GraphView) -> str:
        """ASCII, so that no name can upset a reader; one box or arrow per line, and a seal as the last key."""
        lines = [
            _list(key, value) if key in ("boxes", "arrows") else f"{_text(key)}: {_text(value)}"
            for key, value in _view_object(view).items()
        ]
        return sealed_text("{\n" + ",\n".join(lines) + "\n}")


def _view_object(view: GraphView) -> dict[str, Any]:
    pairs = [pair for root in view.roots for pair in _with_parents(root, None)]
    file = filled(
        ViewFile,
        view,
        schema_version=VIEW_VERSION,
        totals=filled(FiguresRow, view.totals),
        boxes=tuple(_box_row(box, parent) for box, parent in pairs),
        arrows=tuple(filled(ArrowRow, arrow, inside=box.id) for box, _ in pairs for arrow in box.arrows),
    )
    return plain_values(file)


def _with_parents(box: Box, parent: str | None) -> Iterator[tuple[Box, str | None]]:
    yield box, parent
    for child in box.children:
        yield from _with_parents(child, box.id)


def _box_row(box: Box, parent: str | None) -> BoxRow:
    return filled(
        BoxRow,
        box,
        parent=parent,
        loops=all_filled(LoopRow, box.loops),
        figures=filled(FiguresRow, box.figures),
        own=filled(FiguresRow, box.own),
        inputs=all_filled(TensorsRow, box.inputs),
        outputs=all_filled(TensorsRow, box.outputs),
        collectives=all_filled(CollectivesRow, box.collectives) or UNSET,
        own_collectives=all_filled(CollectivesRow, box.own_collectives) if box.collectives else UNSET,
    )


def _list(key: str, items: Sequence[object]) -> str:
    return f"{_text(key)}: [\n" + ",\n".join(map(_text, items)) + "\n]"


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False)


class JsonReport:
    """One object; each row is an object too, so that `jq '.tables[0].rows[].flops'` works."""

    suffix = ".json"

    def render(self, report: Report) -> str:
        """The report as indented ASCII, ending with a newline."""
        return json.dumps(_report_object(report), indent=2, allow_nan=False) + "\n"


def _report_object(report: Report) -> dict[str, object]:
    return {
        "title": report.title,
        "answer": list(report.answer),
        "tables": [_table_object(table) for table in report.tables],
        "charts": [_chart_object(chart) for chart in report.charts],
        "graph": None if report.graph is None else _view_object(report.graph),
        "listings": [{"title": listing.title, "text": listing.text} for listing in report.listings],
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
                "series": list(map(asdict, chart.series)),
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
                "marks": list(map(asdict, chart.marks)),
            }
        case SpanChart():
            return {
                "type": "span",
                "title": chart.title,
                "caption": chart.caption,
                "axis": _axis_object(chart.axis),
                "spans": list(map(asdict, chart.spans)),
            }


def _axis_object(axis: Axis) -> dict[str, object]:
    return {"name": axis.name, "unit": UNIT_OF.get(axis.kind), "is_log": axis.is_log}
