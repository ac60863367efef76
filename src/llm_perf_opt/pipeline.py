"""Wires the stations: adapter -> targets -> tracer -> call graphs -> files and report.

The only module that knows them all. Models and tracers are found by name, so importing this loads no torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llm_perf_opt.analyses.coverage import price_coverage
from llm_perf_opt.analyses.stage_report import stage_report
from llm_perf_opt.callgraph import CallGraph, read_callgraph, write_callgraph
from llm_perf_opt.document import Report
from llm_perf_opt.errors import PerfOptError, UsageError
from llm_perf_opt.plugins import FOLDERS, MODELS, TRACERS, ModelAdapter, Target, Tracer, Workload
from llm_perf_opt.units import format_count, format_seconds

log = logging.getLogger(__name__)

TRACE_SUFFIX = ".callgraph.json"
PHASE_ORDER = ("vision", "prefill", "decode")  # the order in which phases run; a phase of another name comes last


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Everything `trace` can be asked for. `model` is a registered name or a folder; a registered name wins."""

    model: str
    workload: Workload
    tracer: str = "weightless"
    routing: str = "balanced"
    device: str = "cuda"
    trust_remote_code: bool = False
    out: Path | None = None  # None: nothing is written
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """What a run left behind: one graph per phase, the files in the same order, and the per-stage report."""

    graphs: tuple[CallGraph, ...]
    files: tuple[Path, ...]
    report: Report
    unpriced_ops: int


def run_trace(request: TraceRequest) -> TraceRun:
    """Trace every phase of the workload; files appear only after all of them succeeded."""
    targets = find_adapter(request.model, request.trust_remote_code).targets(request.workload)
    files = _free_files(request, targets)
    tracer = cast("Callable[..., Tracer]", TRACERS.get(request.tracer))(routing=request.routing, device=request.device)
    graphs = tuple(_trace(tracer, target) for target in targets)
    for graph, file in zip(graphs, files, strict=False):
        write_callgraph(graph, file, overwrite=request.force)
    unpriced_ops = sum(price_coverage(graph).unpriced_ops for graph in graphs)
    return TraceRun(graphs=graphs, files=files, report=stage_report(graphs), unpriced_ops=unpriced_ops)


def report_on(paths: Sequence[Path]) -> Report:
    """The per-stage report of traces made earlier; a folder stands for every trace in it. Needs no torch."""
    return stage_report(tuple(read_callgraph(file) for file in _trace_files(paths)))


def find_adapter(model: str, trust_remote_code: bool) -> ModelAdapter:
    """The adapter registered as `model`, or the one for the folder of that name."""
    if model in MODELS.names():
        return MODELS.get(model)()
    if Path(model).is_dir():
        return FOLDERS.get("huggingface")(Path(model), trust_remote_code)
    if "/" in model:
        raise UsageError(
            f"There is no folder {model!r}.",
            why="a name with a slash is read as a local folder; nothing is downloaded",
            fix=f'fetch the code and configuration alone: hf download {model} --include "*.json" "*.py" '
            f"--local-dir {Path(model).name}",
        )
    return MODELS.get(model)()


def _free_files(request: TraceRequest, targets: Sequence[Target]) -> tuple[Path, ...]:
    """One file per phase, refused before the work begins where something would be overwritten."""
    if request.out is None:
        return ()
    files = tuple(request.out / f"{target.phase}{TRACE_SUFFIX}" for target in targets)
    taken = [str(file) for file in files if file.exists()]
    if taken and not request.force:
        raise PerfOptError(
            f"Would overwrite {', '.join(taken)}.",
            why="a trace is never overwritten silently",
            fix="add --force to replace what is there, or choose another --out",
        )
    try:
        request.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfOptError(
            f"Cannot make the folder {request.out}.",
            why=error.strerror or type(error).__name__,
            fix="choose another --out",
        ) from error
    return files


def _trace(tracer: Tracer, target: Target) -> CallGraph:
    log.info("Tracing %s, %s ...", target.model, target.phase)
    started = time.perf_counter()
    graph = tracer.trace(target)
    seconds = time.perf_counter() - started
    log.info("  %s module calls in %s", format_count(sum(graph.call_counts.values())), format_seconds(seconds))
    return graph


def _trace_files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob(f"*{TRACE_SUFFIX}"), key=_phase_rank) if path.is_dir() else [path]
        if not found:
            raise UsageError(
                f"There is no trace in {path}.",
                why=f"no file there ends in {TRACE_SUFFIX}",
                fix=f"make one: llm-perf-opt trace deepseek-ocr --out {path}",
            )
        files += found
    return files


def _phase_rank(file: Path) -> tuple[int, str]:
    phase = file.name.removesuffix(TRACE_SUFFIX)
    return (PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER)), phase
