"""From a model's name to its call graphs: adapter, targets, tracer, files."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from llm_perf_opt.analyses.cost.coverage import price_coverage
from llm_perf_opt.analyses.cost.stage_report import stage_report
from llm_perf_opt.analyses.measured_time import time_report
from llm_perf_opt.analyses.necessary.necessary_table import with_necessary
from llm_perf_opt.api.deployed_traces import as_checkpoint, deployed, formats_of, redeployed
from llm_perf_opt.api.trace_files import PARTIAL, TRACE_SUFFIX, read_traces
from llm_perf_opt.core.callgraph import CallGraph, write_callgraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import make_folder, require_free
from llm_perf_opt.core.protocols import (
    FOLDERS,
    MODELS,
    TRACERS,
    Deployment,
    DrawingTracer,
    ModelAdapter,
    PartialTrace,
    Target,
    Tracer,
    Workload,
)
from llm_perf_opt.core.report import Report
from llm_perf_opt.core.units import format_count, format_seconds

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Everything `trace` can be asked for. `model` is a registered name or a folder; a registered name wins."""

    model: str
    workload: Workload
    tracer: str = "weightless"
    deployment: Deployment = field(default_factory=Deployment)
    routing: str | None = None  # of routing, device and load_weights, None leaves the choice to the tracer
    device: str | None = None
    load_weights: str | None = None  # "random", "none", or a folder
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
    adapter = find_adapter(request.model, request.trust_remote_code)
    targets = adapter.targets(request.workload)
    files = _free_files(request, targets)
    traced = tuple(_trace(tracer, target, request, adapter) for target in targets)
    graphs = deployed(adapter, traced, request.deployment)
    if request.torchlens_picture is not None:
        _draw(cast("DrawingTracer", tracer), targets, graphs, *request.torchlens_picture)
    for graph, file in zip(graphs, files, strict=False):
        write_callgraph(graph, file, overwrite=request.force)
        _partial_file(file.parent, graph.phase).unlink(missing_ok=True)
    return TraceRun(graphs=graphs, files=files, report=report_of(graphs), unpriced_ops=_unpriced_ops(graphs))


def trace_on_ghosts(adapter: ModelAdapter, request: TraceRequest) -> tuple[CallGraph, ...]:
    """The graphs alone, one per phase, of an adapter at hand: nothing is written and nothing reported."""
    tracer = _make_tracer(request)
    traced = tuple(_trace(tracer, target, request, adapter) for target in adapter.targets(request.workload))
    return deployed(adapter, traced, request.deployment)


def trace_each_phase(
    adapter: ModelAdapter, request: TraceRequest
) -> tuple[tuple[CallGraph, ...], tuple[PartialTrace, ...]]:
    """The same, but a model that raises in one phase stops that phase alone: what finished, and what stopped."""
    tracer = _make_tracer(request)
    finished: list[CallGraph] = []
    stopped: list[PartialTrace] = []
    for target in adapter.targets(request.workload):
        try:
            finished.append(_trace(tracer, target, request, adapter))
        except PartialTrace as stop:
            stopped.append(stop)
    return deployed(adapter, finished, request.deployment), tuple(stopped)


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
    wishes = {"routing": request.routing, "device": request.device, "weights": request.load_weights}
    if "weights" not in takes and request.load_weights == "none":
        del wishes["weights"]
    given = {name: wish for name, wish in wishes.items() if wish is not None}
    for name in given:
        if name not in takes:
            option = "--load-weights" if name == "weights" else f"--{name}"
            raise UsageError(
                f"The tracer {request.tracer!r} has no use for {option}.",
                why="it runs without weights" if name == "weights" else "it runs the model for real",
                fix=f"leave {option} out, or choose another --tracer",
            )
    return make(**given, **({"keep_in": request.out} if "keep_in" in takes else {}))


def _unpriced_ops(graphs: Sequence[CallGraph]) -> int | None:
    if any(graph.ops is None for graph in graphs):
        return None
    return sum(price_coverage(graph).unpriced_ops for graph in graphs)


def _free_files(request: TraceRequest, targets: Sequence[Target]) -> tuple[Path, ...]:
    """One file per phase, refused before the work begins where something would be overwritten."""
    if request.out is None:
        return ()
    files = tuple(request.out / f"{target.phase}{TRACE_SUFFIX}" for target in targets)
    beside = [request.out / f"{target.phase}.chrome-trace.json" for target in targets if request.tracer == "profiler"]
    beside += [_partial_file(request.out, target.phase) for target in targets]
    beside += [request.torchlens_picture[1]] if request.torchlens_picture is not None else []
    require_free((*files, *beside), force=request.force)
    make_folder(request.out)
    return files


def _partial_file(folder: Path, phase: str) -> Path:
    return folder / f"{phase}{PARTIAL}{TRACE_SUFFIX}"


def _trace(tracer: Tracer, target: Target, request: TraceRequest, adapter: ModelAdapter) -> CallGraph:
    log.info("Tracing %s, %s ...", target.model, target.phase)
    started = time.perf_counter()
    try:
        graph = tracer.trace(target)
    except PartialTrace as stopped:
        stopped.graph = as_checkpoint(stopped.graph, formats_of(adapter, stopped.graph))
        if request.out is not None:
            file = _partial_file(request.out, target.phase)
            write_callgraph(stopped.graph, file, overwrite=request.force)
            log.info("Wrote %s: what ran until the model stopped in %s", file, stopped.graph.stopped_in or "(root)")
        raise
    seconds = time.perf_counter() - started
    log.info("  %s module calls in %s", format_count(sum(graph.call_counts.values())), format_seconds(seconds))
    return graph


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
