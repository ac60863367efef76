"""How cost, memory and time change with batch and context: one function of the model, asked at many points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from llm_perf_opt.api.sweep_answer import SweepAnswer
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.named_hardware import Hardware, cluster_of, device_of
from llm_perf_opt.core.number_ranges import NumberRange, read_range
from llm_perf_opt.serving.fit import rank_memory
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.sweep.points import (
    BATCH,
    CONTEXT,
    PREFILL,
    Pair,
    PhaseSweep,
    SweepPoint,
    added_costs,
    bends,
    largest_batch,
    shown_values,
)
from llm_perf_opt.sweeps.function.sweep.report import OpenCell, ProvenCell
from llm_perf_opt.sweeps.run_function import RunFunction, trace_function
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.traced_run import TracedRun, media_tokens

DEFAULT_BATCH, DEFAULT_CONTEXT = "1..64", "1k..8k"
MOST_TRACED = 16  # points outside all cells, each traced by itself
MOST_ROWS = 20_000


def default_sweep(run: TracedRun, device: Hardware | None) -> SweepAnswer:
    """A traced model over the default ranges; a context that its images exceed begins behind them."""
    batches, contexts = read_range(DEFAULT_BATCH, BATCH), read_range(DEFAULT_CONTEXT, CONTEXT)
    longer = 2 ** media_tokens(run.graphs[0]).bit_length()
    if contexts.low < longer:
        contexts = read_range((longer, contexts.high * longer // contexts.low), CONTEXT)
    function = trace_function(run, batch=batches.ends, context=contexts.ends)
    return sweep_answer(
        function,
        function._traces.graph,
        batches=batches,
        contexts=contexts,
        device=device,
        execution=Execution.EAGER,
    )


def refuse_rows(batches: NumberRange, contexts: NumberRange) -> None:
    """Refuse a grid that no table could show."""
    rows = len(batches.values) * len(contexts.values)
    if rows > MOST_ROWS:
        raise UsageError(
            f"{rows:,} points are too many to show.",
            why=f"a table has at most {MOST_ROWS:,}",
            fix="ask for fewer with --points, or ask the function: trace.over(...).figures(...)",
        )


def sweep_answer(
    function: RunFunction[TracedRun],
    trace_phase: Callable[[str, Any], CallGraph],
    *,
    batches: NumberRange,
    contexts: NumberRange,
    device: Hardware | None,
    execution: str,
) -> SweepAnswer:
    """The function at every point of the grid; `trace_phase` traces a point that no cell proves."""
    refuse_rows(batches, contexts)
    one = None if device is None else device_of(device)
    cluster = None if device is None else cluster_of(device)
    rates = None if device is None else source_of(device, execution, kernels=None, runs=[function.proven_graphs()])
    phases = tuple(_phase_sweep(one, rates, trace_phase, function.workload.new_tokens) for one in function.phases)
    pairs: list[Pair] = [*product(batches.values, contexts.values)]
    unproven = {pair for phase in phases for pair, held in zip(pairs, phase.proven(pairs), strict=True) if not held}
    can_trace = function.origin is not None and len(unproven) <= MOST_TRACED
    points = tuple(_points(phases, pairs, traced=can_trace))
    failed = {(point.batch, point.context) for point in points if point.failure is not None}
    batch, context = min(pairs, key=lambda pair: (pair in failed, pair in unproven))
    graphs = function.at(batch=batch, context=context).graphs
    steps = [phase for phase in phases if phase.phase != PREFILL]
    serving = None if one is None else rank_memory(graphs, one)
    return SweepAnswer(
        model=graphs[0].model,
        device=one,
        cluster=cluster,
        execution=execution,
        rates=None if rates is None else rates.name,
        batches=batches,
        contexts=contexts,
        points=points,
        added=tuple(one for phase in phases for one in added_costs(phase, batches, contexts)),
        bends=tuple(
            bend for phase in steps for context in shown_values(contexts) for bend in bends(phase, batches, context)
        ),
        largest_batches=()
        if one is None
        else tuple(largest_batch(phases, batches, context, one, serving) for context in contexts.values),
        cells=tuple(cell for phase in function.phases for cell in _proven(phase)),
        open_regions=tuple(
            OpenCell(
                phase=phase.phase,
                batch=one.region[BATCH],
                context=one.region[CONTEXT],
                only=None if one.stride is None else str(one.stride),
                why=str(one.why),
            )
            for phase in function.phases
            for one in phase.open_regions
        ),
        traces=sum(phase.traces for phase in function.phases),
        _function=function,
        _phases=phases,
        _graphs=graphs,
        _rates=rates,
    )


def _phase_sweep(
    function: PhaseFunction,
    rates: RateSource | None,
    trace_phase: Callable[[str, Any], CallGraph],
    new_tokens: int,
) -> PhaseSweep:
    return PhaseSweep(
        function=function,
        rates=rates,
        trace=lambda point: trace_phase(function.phase, point),
        new_tokens=new_tokens,
    )


def _points(phases: Sequence[PhaseSweep], pairs: Sequence[Pair], *, traced: bool) -> Iterator[SweepPoint]:
    """Phase by phase; the cache that a prefill leaves is what the decode step at the same point is handed."""
    found = {phase.phase: phase.at(pairs, traced=traced) for phase in phases}
    caches = {
        (point.batch, point.context): point.cache_bytes
        for rows in found.values()
        for point in rows
        if point.cache_bytes is not None
    }
    for rows in found.values():
        yield from (replace(point, cache_bytes=caches.get((point.batch, point.context))) for point in rows)


def _proven(phase: PhaseFunction) -> Iterator[ProvenCell]:
    for one in phase.cells:
        yield ProvenCell(
            phase=phase.phase,
            batch=one.region[BATCH],
            context=one.region[CONTEXT],
            only=None if one.cell.stride is None else str(one.cell.stride),
            checked_points=len({tuple(sorted(point.items())) for point in one.cell.checked}),
            flops=None if one.figures is None else str(one.figures.total.flops),
        )
