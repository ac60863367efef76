"""A model that ran: one call graph per phase, what it was made from, and how to run it once more."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import CannotRunError
from llm_perf_opt.core.output_files import free_file
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.core.protocols import ModulePicture, RunsForReal, Tracer
from llm_perf_opt.core.target import Target
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.found_model import FoundModel, kinds_of_rank
from llm_perf_opt.tracing.origin import Origin, on_rank
from llm_perf_opt.tracing.stored_traces import as_kept, keep_graphs, stored_graphs
from llm_perf_opt.tracing.trace_files import rank_folder
from llm_perf_opt.tracing.traced_phases import (
    TracedPhases,
    draw_modules,
    drawing_tracer,
    make_tracer,
    reserve_folder,
    trace_targets,
    with_events,
    write_graphs,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TracedRun:
    """What ran, one call graph per phase: all that an answer is made from. `Trace` is one that can be asked.

    `origin` is the model that was traced; a run that was read from files has none, and is asked from what it holds.
    """

    name: str  # the model, or the path it was read from
    graphs: tuple[CallGraph, ...]
    origin: Origin | None = None
    failures: Mapping[str, str] = field(default_factory=dict)  # phase in which the model raised -> reason
    files: tuple[Path, ...] = ()  # in which it was saved, or from which it was read
    others: tuple[TracedRun, ...] = ()  # of a model that is split between ranks: one of each further kind of rank

    @property
    def _plan(self) -> ParallelPlan | None:
        """How the model is spread, and which rank this is; None: it runs on one device."""
        return plan_in(self.graphs[0].deployment) if self.graphs else None

    @property
    def ranks(self) -> tuple[TracedRun, ...]:
        """One run for each kind of rank, itself first."""
        return (self, *self.others)

    @property
    def phases(self) -> tuple[str, ...]:
        """The names of the phases, in the order in which they ran."""
        return tuple(graph.phase for graph in self.graphs)

    def _origin(self) -> Origin:
        if self.origin is None:
            raise UsageError(
                "A saved trace has no model that could run.",
                why="an export runs parts of the model again",
                fix="trace the model, or call lpo.export",
            )
        return self.origin

    def _phase(self, phase: str | None) -> CallGraph:
        """The graph of that phase, by default the first."""
        phase = phase or self.phases[0]
        if phase not in self.phases:
            raise UsageError(
                f"There is no phase {phase!r}.", why=f"there are: {', '.join(self.phases)}", fix="choose one"
            )
        return self.graphs[self.phases.index(phase)]

    def _finished(self) -> tuple[CallGraph, ...]:
        """The graphs of a run that came to its end."""
        for graph in self.graphs:
            if graph.stopped_in is not None:
                raise PerfOptError(
                    f"The {graph.phase} of this trace stopped half-way, in {graph.stopped_in or '(root)'}.",
                    why="the ops after that point are missing, so every figure would be too small",
                    fix="trace it again; until then llm-perf-opt report shows what ran",
                )
        return self.graphs

    @cached_property
    def _other_attention(self) -> tuple[CallGraph, ...]:
        """The same workload with the other kind of attention; nothing where the model has but one."""
        return () if self.origin is None else trace_other_attention(self.origin, self.graphs)


def media_tokens(graph: CallGraph) -> int:
    """What images and sound add to the prompt."""
    prompt = int(graph.workload.get("prompt_tokens", 0))
    return int(graph.workload.get("context_tokens", prompt)) - prompt


def trace_ranks(origin: Origin, plan: ParallelPlan, out: Path | None = None, **how: Any) -> TracedRun:
    """One rank of each kind of a plan, the first of them with the others; several lie in folders of their own."""
    source = origin.source
    ranks = (
        source.kinds_of_rank(plan, origin.workload)
        if isinstance(source, FoundModel)
        else kinds_of_rank(source, plan, origin.workload)
    )
    traces = [
        trace_origin(on_rank(origin, plan.of_rank(rank)), out=rank_folder(out, rank, ranks), **how) for rank in ranks
    ]
    return replace(traces[0], others=tuple(traces[1:]))


def trace_origin(
    origin: Origin,
    tracer: Tracer | None = None,
    *,
    pictures: Sequence[ModulePicture] = (),
    extra_suffixes: Sequence[str] = (),
    out: Path | None = None,
    force: bool = False,
    keep_partial: bool = False,
    events: bool = False,
) -> TracedRun:
    """Trace a model and workload that are known already. Default: without weights, and nothing is written.

    Such a run that was made before is read from the cache. `extra_suffixes` are of files that the tracer itself
    leaves in `out`, one per phase.
    """
    is_kept = tracer is None and not pictures
    stored = stored_graphs(origin) if is_kept else None
    if stored is not None:
        return _stored_run(origin, stored, out=out, force=force, events=events)
    running = tracer or make_tracer(routing=origin.routing, torch_device=origin.torch_device)
    targets = _targets(origin, running)
    phases = [target.phase for target in targets]
    if pictures:
        for picture in pictures:
            free_file(picture.file, force=force)
        drawing_tracer(running).require_drawable(origin.targets()[0], pictures)
    if out is not None:
        reserve_folder(
            out, phases, [out / f"{phase}{suffix}" for phase in phases for suffix in extra_suffixes], force=force
        )
    traced = trace_targets(
        running,
        origin.adapter,
        targets,
        as_kept(origin) if is_kept else origin.deployment,
        out=out,
        force=force,
        keep_partial=keep_partial,
        events=events,
    )
    if is_kept:
        traced = replace(traced, graphs=_kept(origin, traced))
    files = () if out is None else write_graphs(traced.graphs, out, force=force)
    if pictures:
        draw_modules(drawing_tracer(running), targets, traced.graphs, pictures)
    return TracedRun(name=origin.name, graphs=traced.graphs, origin=origin, failures=traced.failures, files=files)


def _kept(origin: Origin, traced: TracedPhases) -> tuple[CallGraph, ...]:
    """The phases deployed as was asked, those that came to their end kept for the next time."""
    finished = [graph for graph in traced.graphs if graph.stopped_in is None]
    if not traced.failures:
        keep_graphs(origin, finished)
    stopped = (graph for graph in traced.graphs if graph.stopped_in is not None)
    return (*redeployed(finished, replace(origin.deployment, cache=None)), *stopped)


def _stored_run(
    origin: Origin, stored: tuple[CallGraph, ...], *, out: Path | None, force: bool, events: bool
) -> TracedRun:
    """A run that was made before, with the files that were asked for this time."""
    graphs = tuple(map(with_events, stored)) if events else stored
    if out is None:
        return TracedRun(name=origin.name, graphs=graphs, origin=origin)
    reserve_folder(out, [graph.phase for graph in graphs], force=force)
    return TracedRun(name=origin.name, graphs=graphs, origin=origin, files=write_graphs(graphs, out, force=force))


def _targets(origin: Origin, tracer: Tracer) -> tuple[Target, ...]:
    """The phases. A module that was built elsewhere runs for real with its own weights, and without them on a twin."""
    adapter = origin.adapter
    if origin.is_module and "weights" in tracer.takes and isinstance(adapter, RunsForReal):
        return adapter.real_run(origin.workload, None).targets
    return origin.targets()


def is_eager(graphs: Sequence[CallGraph]) -> bool:
    """Whether the run computed attention step by step."""
    return bool(graphs[0].workload.get("attention", "eager") == "eager")


def trace_other_attention(origin: Origin, graphs: Sequence[CallGraph]) -> tuple[CallGraph, ...]:
    """The same workload with the other kind of attention; nothing where the model has but one."""
    finished = [graph for graph in graphs if graph.stopped_in is None]
    if not finished:
        return ()
    other = "sdpa" if is_eager(finished) else "eager"
    try:
        traced = trace_origin(replace(origin, workload=replace(origin.workload, attention=other)), keep_partial=True)
    except PerfOptError as error:
        level = logging.WARNING if isinstance(error, CannotRunError) else logging.INFO
        log.log(level, "No figures for %s attention: %s", other, error.what)
        return ()
    return tuple(graph for graph in traced.graphs if graph.stopped_in is None)
