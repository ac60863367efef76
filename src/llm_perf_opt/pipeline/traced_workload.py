"""The workload of a trace made earlier, from its header, so that other sources can be asked about the same thing."""

from __future__ import annotations

from dataclasses import fields

from llm_perf_opt.callgraph import CallGraph
from llm_perf_opt.plugins import Workload

_WHOLE_PAGE = [1, 1]


def workload_of(graph: CallGraph) -> Workload:
    """What was asked for, with the defaults that were filled in then; a page that was not cut has no crops to force."""
    told = {field.name: graph.workload[field.name] for field in fields(Workload) if field.name in graph.workload}
    crops = told.get("crops")
    told["crops"] = None if crops in (None, _WHOLE_PAGE) else tuple(crops)
    return Workload(**told)
