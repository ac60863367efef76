"""Rates of a serving engine: a run's decoder as one step that every verb asks, all else by its fused kernels.

The decode step of a run gives the blocks of its decoder. A table of steps answers for any batch and lengths, so a
prediction, a study and a replay of requests have one time for one step; the kernels of the step say what it is made of.
A run without a decode step, and one with work that its blocks do not hold, is timed by its fused kernels alone.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.parallel_plan import ParallelPlan, plan_in
from llm_perf_opt.costs.memory.kv_cache import DECODE, new_tokens
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.costs.necessary.stage_needs import contexts_of
from llm_perf_opt.ops.op import Kernel
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.rates import StagePieces
from llm_perf_opt.timing.stage_work import StageWork
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import step_table

_SAME_WORK = (0.95, 1.3)  # FLOPs of the blocks over the necessary ones: engines compute what the last layer need not
_Run = tuple[str, str, int]  # model, deployment, parameters: the same for every phase of one rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The decoder of a run under its plan, and the table of its steps on a device."""

    blocks: EngineBlocks
    plan: ParallelPlan
    table: StepTable


@dataclass(frozen=True, slots=True)
class StepRates(KernelTableRates):
    """Measured kernels, with the decoders of the runs that were met."""

    _decoders: dict[_Run, EngineBlocks] = field(default_factory=dict, compare=False, repr=False)
    _tables: dict[tuple[int, ParallelPlan], StepTable] = field(default_factory=dict, compare=False, repr=False)

    def meet(self, graphs: Iterable[CallGraph]) -> None:
        """Learn the decoders of runs from their decode steps."""
        for graph in graphs:
            plan = plan_in(graph.deployment)
            is_step = graph.phase == DECODE and graph.storages is not None
            if is_step and (plan is None or plan.fsdp == 1) and _run_of(graph) not in self._decoders:
                self._decoders[_run_of(graph)] = engine_blocks(graph)

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """The kernels of each stage; the decoder's own stage is known as a whole."""
        pieces = KernelTableRates.pieces(self, graph, works)  # `super()` knows no class with slots
        step = self.step_of(graph, works)
        return pieces if step is None else {**pieces, graph.phase: step}

    def step_of(self, graph: CallGraph, works: Sequence[StageWork]) -> StagePieces | None:
        """The part of a phase that belongs to no tower, where the blocks of the run do its work."""
        known = self.forwards_of(graph, works)
        return None if known is None else self.step(*known)

    def forwards_of(self, graph: CallGraph, works: Sequence[StageWork]) -> tuple[Decoder, tuple[Forward, ...]] | None:
        """The decoder of a phase and the forwards that it runs, where the blocks of the run do its work."""
        decoder = self.decoder_of(graph)
        needed = next((work.necessary for work in works if work.name == graph.phase), None)
        if decoder is None or needed is None:
            return None
        anatomy, new = anatomy_of(graph), new_tokens(graph) if graph.phase == DECODE else None
        forwards = tuple(
            Forward(sequences=anatomy.positions.batch, queries=new or context, keys=context)
            for context in contexts_of(graph, anatomy).values()
        )
        low, high = _SAME_WORK
        # A traced plan may leave experts or heads replicated on every rank, which an engine shares among them.
        most, least = (_flops(decoder.blocks, forwards, plan) for plan in (ParallelPlan(), decoder.plan))
        is_same = low * needed.flops <= most and least <= high * needed.flops
        return (decoder, forwards) if is_same else None

    def decoder_of(self, graph: CallGraph) -> Decoder | None:
        """The decoder of the run which a phase belongs to; None: the run was not met."""
        blocks = self._decoders.get(_run_of(graph))
        if blocks is None:
            return None
        plan = replace(plan_in(graph.deployment) or ParallelPlan(), rank=None, plan=None, dp=1)
        key = (id(blocks), plan)  # `_decoders` keeps the blocks, so the number stays theirs
        if key not in self._tables:
            self._tables[key] = step_table(blocks, EngineTimer(self), plan)
        return Decoder(blocks=blocks, plan=plan, table=self._tables[key])

    def step(self, decoder: Decoder, forwards: Sequence[Forward]) -> StagePieces:
        """Some forwards, one after the other."""
        kernels = Counter[Kernel]()
        for forward in forwards:
            for kernel, count in forward_kernels(decoder.blocks, forward, decoder.plan, self.knows):
                kernels[kernel] += count
        self.learn(kernels)
        return StagePieces(
            pieces=tuple(kernels.items()), expected_s=sum(_seconds(decoder.table, forward) for forward in forwards)
        )


def _flops(blocks: EngineBlocks, forwards: Sequence[Forward], plan: ParallelPlan) -> int:
    return sum(kernel.flops * count for forward in forwards for kernel, count in forward_kernels(blocks, forward, plan))


def _seconds(table: StepTable, forward: Forward) -> float:
    sequences = round(forward.sequences)
    if forward.queries == 1:
        return table.seconds(sequences, sequences * forward.keys)
    return table.seconds(0, 0, [(forward.queries, forward.keys - forward.queries)] * sequences)


def forward_at(phase: str, point: Mapping[str, int]) -> Forward:
    """One forward of a function of `batch`, `context` and, of a chunk behind a cache, `new_tokens`."""
    cached = 0 if phase == "prefill" else point["context"]
    new = 1 if phase == DECODE else point.get("new_tokens", point["context"])
    return Forward(sequences=point.get("batch", 1), queries=new, keys=cached + new)


def _run_of(graph: CallGraph) -> _Run:
    deployment = json.dumps(graph.deployment, sort_keys=True, default=str)
    return graph.model, deployment, sum(math.prod(parameter.meta.shape) for parameter in graph.parameters)
