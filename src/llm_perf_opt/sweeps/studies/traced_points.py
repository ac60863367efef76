"""Points of a study from traces: each batch and context is traced once, for all formats, replicas and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.parallel_plan import AXES
from llm_perf_opt.core.workload import Deployment
from llm_perf_opt.serving.engine_code import trace_named
from llm_perf_opt.serving.fit import fit_of, rank_memory
from llm_perf_opt.serving.plan_time import PlanTime, plan_times
from llm_perf_opt.serving.rank_figures import rank_kinds
from llm_perf_opt.sweeps.function.figures.needs import figures_of
from llm_perf_opt.sweeps.function.figures.times import times_by_point
from llm_perf_opt.sweeps.run_function import RunFunction, trace_function
from llm_perf_opt.sweeps.studies.figures import Figures, TimedPhase, named, time_figures, together
from llm_perf_opt.sweeps.studies.study_columns import DECODE, FIGURES, PREFILL
from llm_perf_opt.sweeps.studies.tasks import PointDeployment, StudyTask
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import find_machine, source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.deployed_traces import redeployed
from llm_perf_opt.tracing.traced_run import TracedRun, media_tokens

Kinds = tuple[tuple[CallGraph, ...], ...]  # the phases of each kind of rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPoint:
    """The figures of one point. `served_batch` is of all replicas; None is unknown."""

    context: int
    image_tokens: int
    figures: Figures
    served_batch: int | None
    rates: str


@dataclass(frozen=True)
class _Traced:
    """A batch and context: the run itself, and the decode step at the end of the answer; empty: the same step."""

    kinds: Kinds
    last: Kinds

    @cached_property
    def timed(self) -> tuple[tuple[TimedPhase, ...], ...]:
        """The phases of each kind of rank, ready to be timed on any device."""
        return tuple(tuple(map(TimedPhase, graphs)) for graphs in self.kinds)

    @cached_property
    def timed_last(self) -> tuple[tuple[TimedPhase, ...], ...]:
        """The same of the last step."""
        return tuple(tuple(map(TimedPhase, graphs)) for graphs in self.last)

    @cached_property
    def figures(self) -> dict[str, Figures]:
        """Work and memory of each phase, on the rank that has the most: the same on every device."""
        places = enumerate(graph.phase for graph in self.kinds[0])
        return {phase: together_ranks([kind[place] for kind in self.kinds]) for place, phase in places}


@dataclass(slots=True)
class TracedPoints:
    """The traces of one task, each made once. In other formats they are kept for one batch and context at a time."""

    task: StudyTask
    _media: int = 0  # tokens of images, as far as a trace has told
    _known: dict[tuple[int, int | None], _Traced | PerfOptError] = field(default_factory=dict)
    _stored: dict[tuple[Any, ...], _Traced] = field(default_factory=dict)

    def at(self, deployment: PointDeployment, batch: int, context: int | None) -> TracedPoint:
        """One point; what cannot run raises."""
        if batch % deployment.replicas:
            raise UsageError(
                f"{batch:,} sequences cannot be shared by {deployment.replicas} replicas.",
                why="each has as many as the others",
                fix="choose a batch that can be divided",
            )
        cluster = deployment.cluster()
        traced = self._in_format(deployment, batch // deployment.replicas, context)
        rates = source_of(
            find_machine(cluster if cluster.count > 1 else cluster.device),
            self.task.execution,
            rates=self.task.rates,
            runs=traced.kinds,
        )
        first = traced.kinds[0][0]
        length = _length(first)
        figures = _figures(traced, rates, deployment, cluster, batch // deployment.replicas)
        end = length + self.task.generated_tokens
        served = served_batches(traced.kinds, cluster.device, [end])[end] if DECODE in _names(traced) else None
        return TracedPoint(
            context=length,
            image_tokens=media_tokens(first),
            figures=figures,
            served_batch=None if served is None else served * deployment.replicas,
            rates=rates.name,
        )

    def function(self, deployment: PointDeployment) -> RunFunction[TracedRun]:
        """The function of the task, in the formats of a deployment, over all its batches and contexts."""
        assert self.task.contexts is not None, "a function is one of the context"
        shares = [placed.replicas for placed in self.task.deployments]
        batches = [batch // share for batch in self.task.batches for share in shares if batch % share == 0]
        if not batches:
            raise UsageError(
                f"No batch can be shared by {min(shares)} replicas.", why="none can be divided", fix="choose another"
            )
        low, high = min(self.task.contexts), max(self.task.contexts) + max(self.task.generated_tokens, 1) - 1
        run = trace_named(
            self.task.model.source,
            **self._workload(min(batches)),
            weights=deployment.weights,
            cache=deployment.cache,
        )
        media = media_tokens(run.graphs[0])
        if low < media:
            raise _too_short(low, media)
        return trace_function(run, batch=(min(batches), max(batches)), context=(low, high))

    def _in_format(self, deployment: PointDeployment, batch: int, context: int | None) -> _Traced:
        key = (deployment.weights, deployment.cache, batch, context)
        if key not in self._stored:
            traced = self._traced(batch, context)
            wanted = Deployment.make(weights=deployment.weights, cache=deployment.cache)
            if any(stored[2:] != key[2:] for stored in self._stored):
                self._stored.clear()
            self._stored[key] = _Traced(
                kinds=tuple(redeployed(graphs, wanted) for graphs in traced.kinds),
                last=tuple(_decode(redeployed(graphs, wanted)) for graphs in traced.last),
            )
        return self._stored[key]

    def _traced(self, batch: int, context: int | None) -> _Traced:
        """Made once; so is a refusal, which would take as long as a trace for every device."""
        if (batch, context) not in self._known:
            try:
                self._known[batch, context] = self._both_ends(batch, context)
            except PerfOptError as refusal:
                self._known[batch, context] = refusal
        traced = self._known[batch, context]
        if isinstance(traced, PerfOptError):
            raise traced
        return traced

    def _both_ends(self, batch: int, context: int | None) -> _Traced:
        kinds = self._run(batch, context)
        steps = max(self.task.generated_tokens, 1) - 1
        decodes = any(graph.phase == DECODE for graph in kinds[0])
        last = self._run(batch, _length(kinds[0][0]) + steps) if steps and decodes else ()
        return _Traced(kinds=kinds, last=last)

    def _run(self, batch: int, context: int | None) -> Kinds:
        """The phases at a batch and context, of one rank of each kind."""
        if context is not None and context < self._media:
            raise _too_short(context, self._media)
        workload = self._workload(batch) | ({} if context is None else {"prompt_tokens": context - self._media})
        run = trace_named(self.task.model.source, **workload)
        media = media_tokens(run.graphs[0])
        if context is not None and media != self._media:  # images were not known of before
            self._media = media
            return self._run(batch, context)
        self._media = media
        return tuple(rank._finished() for rank in run.ranks)

    def _workload(self, batch: int) -> dict[str, Any]:
        plan = {axis: getattr(self.task.plan, axis) for axis in AXES if axis != "dp"}
        spread = {axis: size for axis, size in plan.items() if size > 1}
        trust = {"trust_remote_code": True} if self.task.trust_remote_code else {}
        copies = {"copies_key_heads": True} if self.task.execution == Execution.FUSED else {}  # as `predict` and `plan`
        return {**self.task.workload, **spread, **trust, **copies, "batch": batch}


def _too_short(context: int, media: int) -> UsageError:
    return UsageError(
        f"A context of {context:,} tokens is too short.",
        why=f"images and sound take {media:,} of it",
        fix=f"begin at {media + 1:,} or more",
    )


def _length(graph: CallGraph) -> int:
    return int(graph.workload.get("context_tokens", graph.workload.get("prompt_tokens", 0)))


def _names(traced: _Traced) -> set[str]:
    return {graph.phase for graph in traced.kinds[0]}


def _figures(traced: _Traced, rates: RateSource, deployment: PointDeployment, cluster: Cluster, batch: int) -> Figures:
    """Work and memory of the fullest rank; times over all stages of the plan."""
    phases = traced.figures
    times = _times(traced.timed, rates, deployment)
    last = _times(traced.timed_last, rates, deployment) if traced.last else times
    before = [{**figures, **times[name]} for name, figures in phases.items() if name != DECODE]
    figures_of_phases: Figures = {} if not before else named(PREFILL, _scalars(together(before)))
    if DECODE in phases:
        figures_of_phases |= named(DECODE, _scalars({**phases[DECODE], **times[DECODE]}))
        figures_of_phases["last_step_high_s"] = max(
            _scalar(last[DECODE]["high_s"]), figures_of_phases[f"{DECODE}_high_s"]
        )
    return figures_of_phases


def _decode(graphs: Sequence[CallGraph]) -> tuple[CallGraph, ...]:
    return tuple(graph for graph in graphs if graph.phase == DECODE)


def together_ranks(graphs: Sequence[CallGraph]) -> Figures:
    """A phase on several kinds of rank: each figure of the one that has the most; unknown stays so."""
    by_rank = [figures_of(graph) for graph in graphs]
    columns = {name: [figures[name] for figures in by_rank] for name in FIGURES}
    return {
        name: None if None in values else max(value for value in values if value is not None)
        for name, values in columns.items()
    }


def _times(
    kinds: Sequence[Sequence[TimedPhase]],
    rates: RateSource,
    deployment: PointDeployment,
) -> dict[str, Figures]:
    """Times of each phase. A plan with several kinds of rank runs as its stages do, one after the other."""
    known = [[phase.predict(rates) for phase in phases] for phases in kinds]
    names = [phase.graph.phase for phase in kinds[0]]
    first = {name: time_figures(times_by_point([times])) for name, times in zip(names, known[0], strict=True)}
    if len(kinds) == 1:
        return first
    graphs = [[phase.graph for phase in phases] for phases in kinds]
    over = plan_times(deployment.plan, rank_kinds(graphs, rates, deployment.plan, known))
    return {name: {**first[name], **_plan_times(over[name])} for name in first}


def _plan_times(time: PlanTime | None) -> Figures:
    if time is None:
        return {"lower_bound_s": None, "low_s": None, "high_s": None, "expected_s": None}
    return {
        "lower_bound_s": time.lower_bound_s,
        "low_s": time.low_s,
        "high_s": time.high_s,
        "expected_s": time.expected_s,
        "bound_by": None,
    }


def _scalars(figures: Mapping[str, Any]) -> Figures:
    return {name: _scalar(value) for name, value in figures.items()}


def _scalar(value: Any) -> Any:
    """Python's own number or word of a column of one."""
    if isinstance(value, list):
        return value[0]
    return value.item() if hasattr(value, "item") else value


def served_batches(
    kinds: Sequence[Sequence[CallGraph]], device: Device, contexts: Sequence[int]
) -> dict[int, int | None]:
    """Context -> the most sequences of it that a serving engine holds on the fullest rank; None: not known."""
    needs = [rank_memory(graphs, device) for graphs in kinds]
    largest_batch: dict[int, int | None] = {}
    for context in contexts:
        most = [fit_of(need, device, batch=1, context=context).largest_batch for need in needs]
        largest_batch[context] = None if None in most else min(count for count in most if count is not None)
    return largest_batch
