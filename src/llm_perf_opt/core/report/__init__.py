"""What an analysis hands to a report format: tables of raw numbers, charts, one picture, and notes."""

from llm_perf_opt.core.report.cells import Cell, Kind
from llm_perf_opt.core.report.chart import Axis, BarChart, Chart, Line, LineChart, Mark, Series, Span, SpanChart
from llm_perf_opt.core.report.graph_view import Arrow, Box, Figures, GraphView, Loop, LoopKind, TensorGroup
from llm_perf_opt.core.report.report import Column, Level, Note, Report, Table

__all__ = [
    "Arrow",
    "Axis",
    "BarChart",
    "Box",
    "Cell",
    "Chart",
    "Column",
    "Figures",
    "GraphView",
    "Kind",
    "Level",
    "Line",
    "LineChart",
    "Loop",
    "LoopKind",
    "Mark",
    "Note",
    "Report",
    "Series",
    "Span",
    "SpanChart",
    "Table",
    "TensorGroup",
]
