"""What an analysis hands to a report format: tables of raw numbers, one picture, and notes."""

from llm_perf_opt.document.graph_view import Arrow, Box, Figures, GraphView, Loop, LoopKind, TensorGroup
from llm_perf_opt.document.report import Cell, Column, Kind, Level, Note, Report, Table

__all__ = [
    "Arrow",
    "Box",
    "Cell",
    "Column",
    "Figures",
    "GraphView",
    "Kind",
    "Level",
    "Loop",
    "LoopKind",
    "Note",
    "Report",
    "Table",
    "TensorGroup",
]
