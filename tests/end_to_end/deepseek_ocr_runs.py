"""Full-size weightless traces of DeepSeek-OCR, each made once for all tests and runs of the same sources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.weightless import RoutingPolicy
from tests.kept_traces import kept_graph

FACTS = Path(__file__).parent.parent / "facts" / "deepseek_ocr"


@cache
def facts(name: str) -> Any:
    return json.loads((FACTS / name).read_text())


@cache
def _tracer() -> WeightlessTracer:
    return WeightlessTracer()


def trace(workload: Workload, phase: str, routing: RoutingPolicy | None = None) -> CallGraph:
    """One phase of one workload; decode steps of the workload decide whether there is a decode phase."""
    if routing is not None:
        return trace_anew(workload, phase, routing)
    return kept_graph(f"deepseek-ocr {workload!r} {phase}", lambda: trace_anew(workload, phase))


def trace_anew(workload: Workload, phase: str, routing: RoutingPolicy | None = None) -> CallGraph:
    tracer = _tracer() if routing is None else WeightlessTracer(routing=routing)
    (target,) = [target for target in DeepSeekOcrAdapter().targets(workload) if target.phase == phase]
    return tracer.trace(target)


def workload(mode: str, crops: list[int] | None = None, **changes: Any) -> Workload:
    """A page in one of the image modes; a crop grid is (columns, rows) and only gundam mode has one."""
    grid = (crops[0], crops[1]) if crops is not None and mode == "gundam" else None
    return DeepSeekOcrWorkload(image="1240x1754", mode=mode, crops=grid, **changes)
