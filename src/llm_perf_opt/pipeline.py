"""Wires the stations: adapter -> targets -> tracer -> call graphs -> files and report.

The only module that knows them all. Models and tracers are found by name, so importing this loads no torch.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from llm_perf_opt.analyses.comparison import (
    DEFAULT_ROWS,
    Compared,
    check_budget,
    compare,
    comparison_report,
    match_phases,
    parse_budget,
    stages_by_name,
)
from llm_perf_opt.analyses.coverage import price_coverage
from llm_perf_opt.analyses.grouping import MAX_BOXES, group
from llm_perf_opt.analyses.measured_time import time_report
from llm_perf_opt.analyses.stage_report import stage_report
from llm_perf_opt.callgraph import CallGraph, read_callgraph, write_callgraph
from llm_perf_opt.document import GraphView, Report
from llm_perf_opt.errors import PerfOptError, UsageError
from llm_perf_opt.plugins import (
    FOLDERS,
    MODELS,
    TRACERS,
    DrawingTracer,
    ModelAdapter,
    PartialTrace,
    Target,
    Tracer,
    Workload,
)
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
    routing: str | None = None  # of routing, device and weights, None leaves the choice to the tracer
    device: str | None = None
    weights: str | None = None  # "random", "none", or a folder
    torchlens_picture: tuple[str, Path] | None = None  # a module, and where to draw it
    trust_remote_code: bool = False
    out: Path | None = None  # None: nothing is written
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """What a run left behind: one graph per phase, the files in the same order, and the per-stage report."""

    graphs: tuple[CallGraph, ...]
    files: tuple[Path, ...]
    report: Report
    unpriced_ops: int | None  # None: the tracer sees no ops


def run_trace(request: TraceRequest) -> TraceRun:
    """Trace every phase of the workload; files appear only after all of them succeeded.

    A model that raises half-way leaves one file, of the phase in which it did, named as partial.
    """
    tracer = _make_tracer(request)
    targets = find_adapter(request.model, request.trust_remote_code).targets(request.workload)
    files = _free_files(request, targets)
    graphs = tuple(_trace(tracer, target, request) for target in targets)
    if request.torchlens_picture is not None:
        _draw(cast("DrawingTracer", tracer), targets, graphs, *request.torchlens_picture)
    for graph, file in zip(graphs, files, strict=False):
        write_callgraph(graph, file, overwrite=request.force)
        _partial_file(file.parent, graph.phase).unlink(missing_ok=True)
    return TraceRun(graphs=graphs, files=files, report=_report_of(graphs), unpriced_ops=_unpriced_ops(graphs))


def _draw(tracer: DrawingTracer, targets: Sequence[Target], graphs: Sequence[CallGraph], path: str, file: Path) -> None:
    """The module's picture, from the first phase that calls it."""
    for target, graph in zip(targets, graphs, strict=True):
        if path in graph.call_counts:
            tracer.picture(target, path, file)
            log.info("Wrote %s", file)
            return
    raise UsageError(f"No phase calls the module {path!r}.", why="the trace has no call of it", fix="check the path")


def _make_tracer(request: TraceRequest) -> Tracer:
    """The tracer with what it was asked for; a wish that it cannot have is refused, not ignored."""
    make = cast("Callable[..., Tracer]", TRACERS.get(request.tracer))
    if request.torchlens_picture is not None and not hasattr(make, "picture"):
        raise UsageError(
            f"The tracer {request.tracer!r} draws no picture.", why="TorchLens does", fix="add --tracer torchlens"
        )
    takes = inspect.signature(make).parameters
    wishes = {"routing": request.routing, "device": request.device, "weights": request.weights}
    if "weights" not in takes and request.weights == "none":
        del wishes["weights"]
    given = {name: wish for name, wish in wishes.items() if wish is not None}
    for name in given:
        if name not in takes:
            raise UsageError(
                f"The tracer {request.tracer!r} has no use for --{name}.",
                why="it runs without weights" if name == "weights" else "it runs the model for real",
                fix=f"leave --{name} out, or choose another --tracer",
            )
    return make(**given, **({"keep_in": request.out} if "keep_in" in takes else {}))


def _report_of(graphs: Sequence[CallGraph]) -> Report:
    """What each stage costs; and, where the tracer measured it, how long it took."""
    report = stage_report(graphs)
    timed = [graph for graph in graphs if graph.calls is not None and graph.calls.started_ns]
    return _joined(report, time_report(timed)) if timed else report


def _joined(first: Report, second: Report) -> Report:
    return replace(first, tables=(*first.tables, *second.tables), notes=(*first.notes, *second.notes))


def _unpriced_ops(graphs: Sequence[CallGraph]) -> int | None:
    if any(graph.ops is None for graph in graphs):
        return None
    return sum(price_coverage(graph).unpriced_ops for graph in graphs)


def report_on(paths: Sequence[Path], times: Sequence[Path] = ()) -> Report:
    """The per-stage report of traces made earlier; a folder stands for every trace in it. Needs no torch.

    `times` are traces of the same run by a tracer that measures: what they took is put on what `paths` cost.
    """
    graphs = tuple(read_callgraph(file) for file in _trace_files(paths))
    if not times:
        return _report_of(graphs)
    measured = tuple(read_callgraph(file) for file in _trace_files(times))
    return _joined(stage_report(graphs), time_report(measured, graphs))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Everything `compare` can be asked for; each side is a trace file or a folder of them."""

    left: Path
    right: Path
    phases: tuple[str, ...] = ()  # empty: all
    budgets: tuple[str, ...] = ()
    rows: int = DEFAULT_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRun:
    """The report, and what a caller may fail on: differences without a cause, budgets that do not hold."""

    report: Report
    unexplained: int
    violated: tuple[str, ...]


def run_compare(request: CompareRequest) -> CompareRun:
    """Hold two runs side by side; folders are matched phase by phase. Needs no torch."""
    budgets = [parse_budget(text) for text in request.budgets]
    left, right = ([read_callgraph(file) for file in _trace_files([path])] for path in (request.left, request.right))
    matched = match_phases(left, right, request.phases)
    comparisons = tuple(compare(*pair) for pair in matched.pairs)
    stages = stages_by_name(comparisons) if budgets else {}
    compared = Compared(
        left=str(request.left),
        right=str(request.right),
        comparisons=comparisons,
        lone=matched.lone,
        verdicts=tuple(check_budget(budget, stages) for budget in budgets),
    )
    return CompareRun(
        report=comparison_report(compared, request.rows),
        unexplained=compared.unexplained,
        violated=tuple(verdict.budget.text for verdict in compared.verdicts if not verdict.holds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRequest:
    """Everything `graph` can be asked for. Without `phase` it is the prefill, or the first phase there is."""

    source: Path
    phase: str | None = None
    depth: int | None = None
    focus: str | None = None
    max_boxes: int = MAX_BOXES
    metric: str = "flops"


def graph_view(request: GraphRequest) -> GraphView:
    """One phase of a trace made earlier, folded into families. Needs no torch."""
    return group(
        _chosen_phase(request),
        depth=request.depth,
        focus=request.focus,
        max_boxes=request.max_boxes,
        metric=request.metric,
    )


def _chosen_phase(request: GraphRequest) -> CallGraph:
    """A run names its files after their phases, so only the wanted one is read; a file alone says its phase itself."""
    files = {file.name.removesuffix(TRACE_SUFFIX): file for file in _trace_files([request.source])}
    if len(files) == 1:
        graph = read_callgraph(*files.values())
        if request.phase in (None, graph.phase):
            return graph
        files = {graph.phase: request.source}
    wanted = request.phase or ("prefill" if "prefill" in files else next(iter(files)))
    if wanted not in files:
        raise UsageError(
            f"There is no phase {wanted!r} in {request.source}.", why=f"it holds: {', '.join(files)}", fix="choose one"
        )
    return read_callgraph(files[wanted])


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
    beside = [request.out / f"{target.phase}.chrome-trace.json" for target in targets if request.tracer == "profiler"]
    beside += [_partial_file(request.out, target.phase) for target in targets]
    beside += [request.torchlens_picture[1]] if request.torchlens_picture is not None else []
    taken = [str(file) for file in (*files, *beside) if file.exists()]
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


def _partial_file(folder: Path, phase: str) -> Path:
    return folder / f"{phase}.partial{TRACE_SUFFIX}"


def _trace(tracer: Tracer, target: Target, request: TraceRequest) -> CallGraph:
    log.info("Tracing %s, %s ...", target.model, target.phase)
    started = time.perf_counter()
    try:
        graph = tracer.trace(target)
    except PartialTrace as stopped:
        if request.out is not None:
            file = _partial_file(request.out, target.phase)
            write_callgraph(stopped.graph, file, overwrite=request.force)
            log.info("Wrote %s: what ran until the model stopped in %s", file, stopped.graph.stopped_in or "(root)")
        raise
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
