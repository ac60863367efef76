"""JSON for programs: raw numbers in base units, the unit in the key, `null` for what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from llm_perf_opt.core.graph_view import Box, GraphView, metric_named
from llm_perf_opt.core.output_files import plain_values, sealed_text
from llm_perf_opt.core.reading import FileKind, all_filled, filled, read_json
from llm_perf_opt.core.report import Axis, BarChart, Cell, Chart, LineChart, Report, SpanChart, Table
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
        collectives=all_filled(BoxCollectivesRow, box.collectives) or UNSET,
        own_collectives=all_filled(BoxCollectivesRow, box.own_collectives) if box.collectives else UNSET,
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


# The grouped view as a JSON file, object by object. `graph_view.schema.json` is generated from these records.
#
# Boxes form a flat list, outer before inner, each with the id of the box around it, so that
# `jq '.boxes[] | select(.class_name == "Linear")'` works at any depth.

VIEW_VERSION: Literal[1] = 1
VIEW_FILE = FileKind(
    name="file of a grouped view",
    fix="draw it again: llm-perf-opt graph TRACE --format json",
    schema_version=VIEW_VERSION,
    is_sealed=True,
)

Count = Annotated[int, Meta(ge=0)]
Texts = tuple[str, ...]


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class FiguresRow(_Object, frozen=True, kw_only=True):
    """What a box costs; null is unknown."""

    flops: Count | None
    macs: Count | None
    bytes_moved: Count | None
    parameters: Count | None
    activation_bytes: Count | None
    unpriced_ops: Count | None


class LoopRow(_Object, frozen=True, kw_only=True):
    """What repeats within one call of the caller."""

    kind: Literal["for", "parfor"]
    count: Count
    least: Annotated[
        Count | None,
        Meta(description="The smallest count, where the calls of the caller differ; count is then the largest."),
    ]
    of: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="How many there are, where the run did not touch all of them."),
    ]
    over: Annotated[Literal["instances", "calls"], Meta(description="Instances of a family, or calls of one instance.")]
    text: str


class TensorsRow(_Object, frozen=True, kw_only=True):
    """One distinct set of tensors, and in how many calls."""

    tensors: Texts
    calls: Count


class BoxCollectivesRow(_Object, frozen=True, kw_only=True):
    """Equal collectives of a box, all its calls together."""

    kind: str
    payload_bytes: Annotated[Count, Meta(description="Of one.")]
    ranks: Count
    count: Count


class BoxRow(_Object, frozen=True, kw_only=True):
    """A module instance or a family of instances."""

    id: str
    parent: Annotated[str | None, Meta(description="The id of the box around it.")]
    label: Annotated[str, Meta(description="Class @ path")]
    class_name: str
    path: str
    stage: str
    is_open: Annotated[bool, Meta(description="Whether the default picture shows what is inside.")]
    is_split: Annotated[
        bool,
        Meta(description="The boxes inside are the members of this one again, told apart by cost; they add no calls."),
    ]
    is_left_out: Annotated[
        bool, Meta(description="Stands for all modules of one stage that a filter took out of the box around it.")
    ]
    instances: Count
    calls: Annotated[Count, Meta(description="Over all instances.")]
    calls_per_instance: Annotated[tuple[Count, ...], Meta(description="The distinct values, ascending.")]
    loops: tuple[LoopRow, ...]
    figures: Annotated[FiguresRow, Meta(description="With everything inside.")]
    own: Annotated[FiguresRow, Meta(description="Of the ops that run directly in it.")]
    constructor_params: Annotated[dict[str, Any], Meta(description="Those that all instances share.")]
    layer_context: Annotated[
        dict[str, Any],
        Meta(description="Of an expert and what is in it: num_experts and top_k of its layer; derived, not its own."),
    ]
    inputs: tuple[TensorsRow, ...]
    outputs: tuple[TensorsRow, ...]
    members: Annotated[Texts, Meta(description="Paths of every instance.")]
    member_calls: Annotated[
        tuple[Count, ...], Meta(description="Calls of each member in this box: a shared module also stands in others.")
    ]
    collectives: (
        Annotated[
            tuple[BoxCollectivesRow, ...], Meta(description="With everything inside; absent where there are none.")
        ]
        | UnsetType
    ) = UNSET
    own_collectives: (
        Annotated[
            tuple[BoxCollectivesRow, ...],
            Meta(description="Those that it asks for itself; absent where there are none inside either."),
        ]
        | UnsetType
    ) = UNSET


class ArrowRow(_Object, frozen=True, kw_only=True):
    """A tensor made in one box and used in its sibling."""

    inside: Annotated[str, Meta(description="The id of the box around both.")]
    source: str
    target: str
    calls: Count


class ViewFile(_Object, frozen=True, kw_only=True):
    """A run folded into boxes.

    Figures are totals over all instances and all calls of a box, in base units; null is unknown. With unpriced_ops
    above zero flops, macs and bytes_moved are lower bounds.
    """

    schema_version: Literal[1]
    title: str
    caption: Texts
    stages: Annotated[Texts, Meta(extra_json_schema={"uniqueItems": True})]
    totals: FiguresRow
    is_ungrouped: Annotated[bool, Meta(description="Each module is a box of its own, under each of its callers.")]
    boxes: Annotated[
        tuple[BoxRow, ...], Meta(description="Outer before inner; the boxes of one parent are in call order.")
    ]
    arrows: tuple[ArrowRow, ...]


def read_view(path: Path) -> ViewFile:
    """The grouped view in a file, as it was written."""
    return read_json(path, ViewFile, VIEW_FILE)
