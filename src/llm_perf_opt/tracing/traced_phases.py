"""Running the phases of a model under a tracer: one call graph per phase, and the files of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from llm_perf_opt.core.callgraph import CallGraph, write_callgraph
from llm_perf_opt.core.callgraph.queries import events_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import make_folder, require_free
from llm_perf_opt.core.parallel_plan import HEADER_KEY, REPLICATED_KEY
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import DrawingTracer, ModelAdapter, ModulePicture, PartialTrace, Tracer
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.target import Json, Target, World
from llm_perf_opt.core.units import format_count, format_seconds
from llm_perf_opt.core.work_limits import LimitReached
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.tracing.deployed_traces import as_checkpoint, deployed, formats_of
from llm_perf_opt.tracing.trace_files import PARTIAL, TRACE_SUFFIX

log = logging.getLogger(__name__)

WEIGHTLESS = "weightless"
_RUNS_FOR_REAL = "it runs the model for real"
_OF_THE_PROFILER = "it is an option of torch.profiler, under which only the tracer 'profiler' runs"
_SEES_ALL = "it records every module; filter the picture: llm-perf-opt graph RUN --only ..."
_OPTIONS = {  # setting -> its option, and why a tracer does not take it
    "routing": ("--routing", _RUNS_FOR_REAL),
    "device": ("--torch-device", _RUNS_FOR_REAL),
    "weights": ("--load-weights", "it runs without weights"),
    "only": ("--only", _SEES_ALL),
    "stage": ("--stage", _SEES_ALL),
    "with_stack": ("--with-stack", _OF_THE_PROFILER),
    "with_modules": ("--with-modules", _OF_THE_PROFILER),
    "profile_memory": ("--profile-memory", _OF_THE_PROFILER),
}


def make_tracer(
    name: str = WEIGHTLESS,
    *,
    routing: str | None = None,
    torch_device: str | None = None,
    load_weights: str | None = None,
    only: str | Sequence[str] | None = None,
    stage: str | Sequence[str] | None = None,
    with_stack: bool = False,
    with_modules: bool = False,
    profile_memory: bool = False,
    keep_in: Path | None = None,
) -> Tracer:
    """The tracer with its settings; a setting that it does not take is refused, not ignored.

    `keep_in` is where a tracer that writes files of its own may leave them.
    """
    kind = TRACERS.get(name)
    given = {"routing": routing, "device": torch_device, "weights": load_weights, "only": only, "stage": stage}
    if "weights" not in kind.takes and load_weights == "none":
        del given["weights"]
    switches = {"with_stack": with_stack, "with_modules": with_modules, "profile_memory": profile_memory}
    chosen: dict[str, object] = {setting: value for setting, value in given.items() if value is not None}
    chosen |= {setting: True for setting, is_on in switches.items() if is_on}
    for setting in chosen.keys() - kind.takes:
        option, why = _OPTIONS[setting]
        raise UsageError(
            f"The tracer {name!r} does not take {option}.",
            why=why,
            fix=f"leave {option} out, or choose another --tracer",
        )
    make = cast("Callable[..., Tracer]", kind)
    return make(**chosen, **({"keep_in": keep_in} if "keep_in" in kind.takes else {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPhases:
    """One graph per phase, those in which the model raised last, and for each of these what it raised."""

    graphs: tuple[CallGraph, ...]
    failures: Mapping[str, str]  # phase -> reason


def trace_targets(
    tracer: Tracer,
    adapter: ModelAdapter,
    targets: Iterable[Target],
    deployment: Deployment,
    *,
    out: Path | None = None,
    force: bool = False,
    keep_partial: bool = False,
    events: bool = False,
) -> TracedPhases:
    """Trace phase after phase. One in which the model raises is kept as far as it ran, or ends the whole.

    A limit of work ends the whole in any case: nothing that follows would stay within it.

    Of a phase that raises a file is written to `out` at once, named as partial. With `events` each graph lists the
    enter and exit of every call.
    """
    traced: list[CallGraph] = []
    stopped: list[PartialTrace] = []
    for target in targets:
        try:
            graph = trace_phase(tracer, target)
            traced.append(with_events(graph) if events else graph)
        except PartialTrace as stop:
            stopped_graph = with_events(stop.graph) if events else stop.graph
            stop.graph = as_checkpoint(stopped_graph, formats_of(adapter, stop.graph))
            if out is not None:
                file = graph_file(out, stop.graph)
                write_callgraph(stop.graph, file, overwrite=force)
                log.info("Wrote %s: what ran until the model stopped in %s", file, stop.graph.stopped_in or "(root)")
            if not keep_partial or isinstance(stop.__cause__, LimitReached):
                raise
            stopped.append(stop)
    graphs = (*deployed(adapter, traced, deployment), *(stop.graph for stop in stopped))
    failures = {stop.graph.phase: f"{stop.what} {stop.why or ''}".strip() for stop in stopped}
    return TracedPhases(graphs=graphs, failures=failures)


def with_events(graph: CallGraph) -> CallGraph:
    """The graph with the enter and exit of every call listed."""
    return replace(graph, events=events_of(graph))


def trace_phase(tracer: Tracer, target: Target) -> CallGraph:
    """One phase as the tracer sees it, alone in this process and within its limits."""
    log.info("Tracing %s, %s ...", target.model, target.phase)
    started = time.perf_counter()
    with OneRun(), RunWatch(f"{target.model}, {target.phase}"):
        graph = tracer.trace(target)
    if target.world is not None:
        graph = replace(graph, deployment={**graph.deployment, HEADER_KEY: _world_header(target.world)})
    seconds = time.perf_counter() - started
    log.info("  %s module calls in %s", format_count(sum(graph.call_counts.values())), format_seconds(seconds))
    return graph


def _world_header(world: World) -> dict[str, Json]:
    """The plan, and which parameters it leaves replicated on every rank where that is known."""
    replicated = {} if world.replicated is None else {REPLICATED_KEY: list(world.replicated)}
    return {**world.plan.header(), **replicated}


def drawing_tracer(tracer: Tracer | None) -> DrawingTracer:
    """The tracer, if its library draws pictures; None, the default tracer, has none."""
    if isinstance(tracer, DrawingTracer):
        return tracer
    raise UsageError("This tracer draws no pictures.", why="only TorchLens does", fix="add --tracer torchlens")


def draw_modules(
    tracer: DrawingTracer, targets: Sequence[Target], graphs: Sequence[CallGraph], pictures: Sequence[ModulePicture]
) -> None:
    """A picture of each module, from the first phase that calls it."""
    graph_of = {graph.phase: graph for graph in graphs}
    for picture in pictures:
        called = [target for target in targets if picture.module in graph_of[target.phase].call_counts]
        if not called:
            raise UsageError(
                f"No phase calls the module {picture.module!r}.",
                why="the model has this module, but no phase runs it",
                fix="choose a module that runs: the trace lists them under call_counts",
            )
        with OneRun():
            tracer.draw(called[0], picture)
        log.info("Wrote %s", picture.file)


def graph_file(folder: Path, graph: CallGraph) -> Path:
    """Where the graph of a phase lies in the folder of a trace."""
    return _phase_file(folder, graph.phase, is_partial=graph.stopped_in is not None)


def _phase_file(folder: Path, phase: str, *, is_partial: bool = False) -> Path:
    return folder / f"{phase}{PARTIAL if is_partial else ''}{TRACE_SUFFIX}"


def reserve_folder(folder: Path, phases: Sequence[str], also: Sequence[Path] = (), *, force: bool) -> None:
    """Refuse, before the work begins, to overwrite a file of these phases or one of `also`; make the folder."""
    files = [_phase_file(folder, phase) for phase in phases]
    partial = [_phase_file(folder, phase, is_partial=True) for phase in phases]
    require_free((*files, *also, *partial), force=force)
    make_folder(folder)


def write_graphs(graphs: Sequence[CallGraph], folder: Path, *, force: bool) -> tuple[Path, ...]:
    """One file per phase; the partial file of an earlier try of the same phase goes."""
    files = tuple(graph_file(folder, graph) for graph in graphs)
    for graph, file in zip(graphs, files, strict=True):
        write_callgraph(graph, file, overwrite=force)
        if graph.stopped_in is None:
            _phase_file(folder, graph.phase, is_partial=True).unlink(missing_ok=True)
    return files
