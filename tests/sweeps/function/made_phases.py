"""Phases without a model: call graphs of a point, made by hand, whose program changes where a test wants it to.

A graph takes a fraction of a millisecond, so that a search for cells can be tried on hundreds of domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder, OpKind, TensorMeta
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction, find_function
from llm_perf_opt.sweeps.function.search.cells import CellSearch
from llm_perf_opt.sweeps.function.search.sampling import Traces

BATCH, CONTEXT = "batch", "context"
HIDDEN, WIDE = 8, 16
Point = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a phase runs at a point: this many further ops, and attention over at most this many positions."""

    further_ops: int = 0
    window: int | None = None


Variants = Callable[[Point], Variant]


def graph_of(point: Point, variant: Variant) -> CallGraph:
    """A projection, attention scores, then `further_ops` times the same elementwise op."""
    batch, context = point[BATCH], point[CONTEXT]
    seen = context if variant.window is None else min(context, variant.window)
    builder = CallGraphBuilder()
    builder.module("", "Toy", ("block",), {})
    builder.module("block", "Block", (), {})

    def meta(*shape: int) -> TensorMeta:
        return builder.meta(shape, "bfloat16", "cuda")

    x, weight, wide = meta(batch, context, HIDDEN), meta(WIDE, HIDDEN), meta(batch, context, WIDE)
    scores = meta(batch, context, seen)
    builder.parameter("block.weight", weight, 1, 2 * WIDE * HIDDEN, is_buffer=False)
    builder.given(2, 2 * batch * context * HIDDEN)
    builder.enter("", [(x, 2)])
    builder.enter("block", [(x, 2)])
    builder.allocate(10, 2 * batch * context * WIDE)
    builder.op(_kind("aten.linear.default", (x, weight), wide, ("input", "weight")), (2, 1), (10,))
    builder.allocate(11, 2 * batch * context * seen)
    keys = meta(batch, WIDE, seen)
    builder.op(_kind("aten.bmm.default", (wide, keys), scores, ("self", "mat2")), (10, 10), (11,))
    builder.free(10)
    last = 11
    for token in range(12, 12 + variant.further_ops):
        builder.allocate(token, 2 * batch * context * seen)
        builder.op(_kind("aten.relu.default", (scores,), scores, ("self",)), (last,), (token,))
        builder.free(last)
        last = token
    builder.leave([(scores, last)])
    builder.leave([(scores, last)])
    return builder.finish(
        model="toy",
        phase="prefill",
        tracer="weightless",
        workload={BATCH: batch, CONTEXT: context},
        stages=(),
        runtime={},
        library_versions={"torch": "2.13.0"},
    )


def _kind(name: str, inputs: tuple[TensorMeta, ...], output: TensorMeta, names: tuple[str, ...]) -> OpKind:
    return OpKind(name=name, inputs=inputs, outputs=(output,), input_names=names, output_aliases=(-1,))


@dataclass(kw_only=True)
class MadePhase:
    """A phase whose program at each point is known, the traces that a search asked for, and what it found."""

    variants: Variants
    domain: Mapping[str, tuple[int, int]]
    budget: int = 80
    hints: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.traced: dict[tuple[int, int], CallGraph] = {}

    def graph(self, point: Point) -> CallGraph:
        """The graph that a trace of the point gives."""
        return graph_of(point, self.variants(point))

    def _traced(self, point: Point) -> CallGraph:
        graph = self.graph(point)
        self.traced[point[BATCH], point[CONTEXT]] = graph
        return graph

    def function(self) -> PhaseFunction:
        """What the search finds."""
        search = CellSearch(
            traces=Traces(trace=self._traced, budget=self.budget),
            domain=self.domain,
            length=CONTEXT,
            hints=list(self.hints),
            chunks=self.chunks,
        )
        return find_function("prefill", search)
