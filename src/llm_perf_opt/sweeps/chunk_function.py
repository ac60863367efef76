"""A step of several new tokens as a function of batch, new tokens and context, beside the phases of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.costs.memory.kv_cache import CHUNK
from llm_perf_opt.sweeps.function.form import Point
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction, find_function
from llm_perf_opt.sweeps.function.search.boxes import BoxSearch
from llm_perf_opt.sweeps.function.search.sampling import Traces
from llm_perf_opt.tracing.origin import Origin
from llm_perf_opt.tracing.traced_phases import make_tracer, trace_targets

BATCH, NEW_TOKENS, CONTEXT = "batch", "new_tokens", "context"
Span = tuple[int, int]


@dataclass(eq=False, kw_only=True)
class ChunkTraces:
    """Traces of one chunk at points; the prefill before it is traced only where a model keeps something from it."""

    origin: Origin
    media_tokens: int
    after_all_phases: bool = False
    _known: dict[tuple[int, int, int], CallGraph] = field(default_factory=dict)

    def origin_at(self, point: Point) -> Origin:
        """The origin with the workload of a point."""
        workload = replace(
            self.origin.workload,
            batch=point[BATCH],
            prompt_tokens=point[CONTEXT] - self.media_tokens,
            new_tokens=point[NEW_TOKENS],
            decode_steps=1,
        )
        return replace(self.origin, workload=workload)

    def graph(self, point: Point) -> CallGraph:
        """The graph of the chunk at a point."""
        key = point[BATCH], point[NEW_TOKENS], point[CONTEXT]
        if key not in self._known:
            origin = self.origin_at(point)
            tracer = make_tracer(routing=origin.routing, torch_device=origin.torch_device)
            targets = [one for one in origin.targets() if self.after_all_phases or one.phase == CHUNK]
            graphs = trace_targets(tracer, origin.adapter, targets, origin.deployment).graphs
            self._known[key] = next(graph for graph in graphs if graph.phase == CHUNK)
        return self._known[key]


def chunk_function(
    made: ChunkTraces, *, batch: Span, context: Span, new_tokens: Span, hints: Sequence[int], traces: int
) -> PhaseFunction:
    """The chunk over ranges of batch, new tokens and cached tokens, ends included."""
    if new_tokens[0] < 2 or new_tokens[1] < new_tokens[0]:
        raise UsageError(
            f"A chunk has 2 or more new tokens, not {new_tokens[0]:,} to {new_tokens[1]:,}.",
            why="a step of one new token is the decode, which the function has anyway",
            fix="begin the range at 2",
        )
    held = Traces(trace=made.graph, budget=traces)
    domain = {BATCH: batch, NEW_TOKENS: new_tokens, CONTEXT: context}
    return find_function(CHUNK, BoxSearch(traces=held, domain=domain, hints=hints))


def phase_not_proven(phase: PhaseFunction, point: Point) -> UsageError:
    """Why a point has no answer where there is no model to trace."""
    where = ", ".join(f"{name} {value:,}" for name, value in point.items())
    return UsageError(
        f"The {phase.phase} at {where} is not known.",
        why="it lies outside the proven cells, and the function was read from a file",
        fix="make the function again from the model: trace.over(...)",
    )
