"""Asking several sources what a model costs: the count of a trace, and independent counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Literal, cast

from llm_perf_opt.api.cost_answer import CostAnswer, cost_answer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.plugins import MODELS, SOURCES
from llm_perf_opt.core.protocols import CountsWholeRuns, KnowsClosedForms, ReadsTraces, Source
from llm_perf_opt.core.run_lock import OneRun, RunWatch
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.target import Json
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.costs.counted import SOURCE as COUNTED
from llm_perf_opt.costs.counted import counted, counted_run
from llm_perf_opt.costs.static_figures import static_compute
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.trace_files import workload_of
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

log = logging.getLogger(__name__)

ESTIMATE = "vllm-estimate"  # of vLLM's own code alone
ALL_SOURCES = (COUNTED, *(name for name in SOURCES.names() if name != ESTIMATE))
QUICK_SOURCES = tuple(name for name in ALL_SOURCES if name != "exported")  # which takes longer than all the others
SOURCES_OF_A_TRACE = (COUNTED, "closed-form")  # those that run nothing
Sources = Sequence[str] | Literal["all"]


def cost_of(origin: Origin, sources: Sources = "all") -> CostAnswer:
    """The same for a model and workload that were found before."""
    names = check_sources(_sources_of_rank(sources, origin.plan))
    if COUNTED not in names:
        return ask_sources((), origin, names)
    return cost_of_run(trace_origin(origin, keep_partial=True), names, other_attention=True)


def cost_of_run(run: TracedRun, sources: Sources | None = None, *, other_attention: bool = False) -> CostAnswer:
    """The same for a run that was traced before."""
    other = run._other_attention if other_attention and run.graphs else ()
    return ask_sources(run.graphs, run.origin, sources, failures=run.failures, other_attention=other)


def check_sources(sources: Sources | None) -> tuple[str, ...]:
    """The names of the sources; a wrong one is refused before any work."""
    if sources is None:
        return SOURCES_OF_A_TRACE
    names = ALL_SOURCES if sources == "all" else tuple(sources)
    for name in names:
        SOURCES.check(name, besides=(COUNTED,))
    return names


def _sources_of_rank(sources: Sources | None, plan: ParallelPlan | None) -> Sources | None:
    """Of one rank the count of the trace alone: the others count the whole model, and are refused where named."""
    if plan is None or not plan.is_spread:
        return sources
    others = [] if sources in (None, "all") else [name for name in sources or () if name != COUNTED]
    if others:
        raise UsageError(
            f"One rank of {plan.describe()} has no figures from {', '.join(others)}.",
            why="these sources count the whole model",
            fix=f"ask {COUNTED} alone, or leave tp, ep, pp and fsdp out",
        )
    return (COUNTED,)


def _is_of_engine(graphs: Sequence[CallGraph]) -> bool:
    return bool(graphs) and graphs[0].deployment.get("code") == "vllm"


def _sources_of_engine(sources: Sources | None) -> tuple[str, ...]:
    """Of an engine's code the count and the engine's own estimate: the others run the model's code."""
    names = (COUNTED, ESTIMATE) if sources in (None, "all") else check_sources(sources)
    others = [name for name in names if name not in (COUNTED, ESTIMATE)]
    if others:
        raise UsageError(
            f"vLLM's code has no figures from {', '.join(others)}.",
            why="these sources run the model's own code",
            fix=f"ask {COUNTED} and {ESTIMATE}, or leave --code out",
        )
    return names


def ask_sources(
    graphs: tuple[CallGraph, ...],
    origin: Origin | None,
    sources: Sources | None = None,
    *,
    failures: Mapping[str, str] | None = None,
    other_attention: Sequence[CallGraph] = (),
) -> CostAnswer:
    """The answer of the sources on a run. Without `origin` its model is found by the name in the trace.

    `failures` says what the model raised in the phases that it did not finish.
    """
    plan = origin.plan if origin is not None else plan_in(graphs[0].deployment)
    names = _sources_of_engine(sources) if _is_of_engine(graphs) else check_sources(_sources_of_rank(sources, plan))
    kept = graphs if COUNTED in names else ()
    partial = {graph.phase: graph for graph in kept if graph.stopped_in is not None}
    finished = tuple(graph for graph in kept if graph.phase not in partial)  # nor an older file of the same phase
    figures = [figure for graph in partial.values() for figure in _of_partial(graph, failures or {})]
    others = [name for name in names if name != COUNTED]
    figures += _ask_model(origin, others) if origin is not None else _ask_of_trace(graphs, others)
    workload = _described(origin) if origin is not None else graphs[0].workload
    model = graphs[0].model if origin is None or graphs else origin.model
    return _answer(model, workload, finished, figures, other_attention)


def _of_partial(graph: CallGraph, failures: Mapping[str, str]) -> tuple[SourceFigures, ...]:
    figures = counted(graph)
    reason = failures.get(graph.phase)
    return figures if reason is None else tuple(replace(figure, failure=reason) for figure in figures)


def _ask_of_trace(graphs: Sequence[CallGraph], names: Sequence[str]) -> list[SourceFigures]:
    model, workload = graphs[0].model, graphs[0].workload
    if names == [ESTIMATE]:
        source = SOURCES.get(ESTIMATE)()
        assert isinstance(source, ReadsTraces)
        return list(source.of_trace(graphs))
    if model not in MODELS.names():
        return [_failed(name, f"no model {model!r} is registered, and a trace holds no code") for name in names]
    routing = workload.get("routing")
    origin = Origin(
        name=model,
        adapter=MODELS.get(model)(),
        workload=workload_of(graphs[0]),
        routing=None if routing == "replay" else routing,  # by counts in a file that the trace does not name
        torch_device=workload.get("device"),
    )
    return _ask_model(origin, names)


def _ask_model(origin: Origin, names: Sequence[str]) -> list[SourceFigures]:
    figures: list[SourceFigures] = []
    for name in names:
        log.info("Asking %s ...", name)
        started = time.perf_counter()
        source = _source(name, origin)
        try:
            with OneRun(), RunWatch(f"{origin.name}, asking {name}"):
                found = source.figures(origin.adapter, origin.workload)
                if isinstance(source, CountsWholeRuns):
                    found += source.whole_runs(origin.adapter, origin.workload)
        except PerfOptError as error:
            found = (_failed(name, f"{error.what} {error.why or ''}".strip()),)
        figures += found
        stages = sum(figure.method is not Method.WHOLE_RUN for figure in found)
        log.info("  %d stages in %s", stages, format_seconds(time.perf_counter() - started))
    return figures


def _source(name: str, origin: Origin) -> Source:
    """The source; one that runs the model is given the routing, and the device that the code sees."""
    kind = SOURCES.get(name)
    settings = {"routing": origin.routing, "device": origin.torch_device} if kind.runs_model else {}
    make = cast("Callable[..., Source]", kind)
    return make(**{setting: value for setting, value in settings.items() if value is not None})


def _failed(source: str, reason: str) -> SourceFigures:
    return SourceFigures(source=source, phase="all", stage="all", method=Method.ISOLATED, failure=reason)


def _described(origin: Origin) -> Mapping[str, Json]:
    """The workload with the adapter's defaults filled in, where it can tell them without running anything."""
    if isinstance(origin.adapter, KnowsClosedForms):
        return origin.adapter.describe(origin.workload)
    return {name: value for name, value in asdict(origin.workload).items() if value is not None}


def _answer(
    model: str,
    workload: Mapping[str, Json],
    graphs: tuple[CallGraph, ...],
    figures: Sequence[SourceFigures],
    other_attention: Sequence[CallGraph],
) -> CostAnswer:
    if not graphs:
        static = static_compute(model=model, workload=workload, graphs=(), source_figures=figures)
        return cost_answer(static)
    from llm_perf_opt.api.memory import eager_and_fused
    from llm_perf_opt.costs.memory.memory_report import attention_cases
    from llm_perf_opt.costs.memory.need import run_memory

    memory = run_memory(graphs)
    found = (*counted_run(graphs, memory), *figures)
    static = static_compute(model=model, workload=graphs[0].workload, graphs=graphs, source_figures=found)
    cases = attention_cases(*eager_and_fused(graphs, other_attention))
    return cost_answer(static, graphs, memory, tuple(cases))
