"""The tables of traces: what each stage costs and, where it was measured, how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.analyses.measured_time import time_report
from llm_perf_opt.analyses.necessary.necessary_table import with_necessary
from llm_perf_opt.analyses.stage_report import stage_report
from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.document import Report
from llm_perf_opt.pipeline.deploying import redeployed
from llm_perf_opt.pipeline.trace_files import read_traces
from llm_perf_opt.plugins import Deployment


def report_on(paths: Sequence[Path], times: Sequence[Path] = (), deployment: Deployment | None = None) -> Report:
    """The per-stage report of traces made earlier; a folder stands for every trace in it. Needs no torch.

    `deployment` stores weights and cache otherwise. `times` are traces of the same run by a tracer that measures: what
    they took is put on what `paths` cost.
    """
    graphs = redeployed(read_traces(paths), deployment or Deployment())
    if not times:
        return report_of(graphs)
    measured = read_traces(times)
    return _joined(stage_report(graphs), time_report(measured, graphs))


def report_of(graphs: Sequence[CallGraph]) -> Report:
    """What each stage costs, as written and necessary; and, where the tracer measured it, how long it took."""
    report = with_necessary(stage_report(graphs), graphs)
    timed = [graph for graph in graphs if graph.calls is not None and graph.calls.started_ns]
    return _joined(report, time_report(timed)) if timed else report


def _joined(first: Report, second: Report) -> Report:
    return replace(first, tables=(*first.tables, *second.tables), notes=(*first.notes, *second.notes))
