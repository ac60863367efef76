"""How cost, memory and time change with batch and context: one function of the model, asked at many points."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analyses.function.phase_function import PhaseFunction
from llm_perf_opt.analyses.function.sweep.points import (
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
from llm_perf_opt.analyses.function.sweep.report import OpenCell, ProvenCell, range_text
from llm_perf_opt.analyses.serving.fit import traced_needs
from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.api.function_files import load_function
from llm_perf_opt.api.hardware import Hardware, cluster_of, device_of, find_hardware
from llm_perf_opt.api.sweep_answer import SweepAnswer
from llm_perf_opt.api.tracing import trace
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import POINTS, Given, NumberRange, read_range

if TYPE_CHECKING:
    from llm_perf_opt.api.function import TraceFunction
    from llm_perf_opt.api.trace import Trace

log = logging.getLogger(__name__)

DEFAULT_BATCH, DEFAULT_CONTEXT = "1..64", "1k..8k"
MOST_TRACED = 16  # points outside all cells, each traced by itself
MOST_ROWS = 20_000


def sweep(
    model: str | Path,
    *,
    batch: Given | None = None,
    context: Given | None = None,
    points: int = POINTS,
    device: str | Hardware | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    traces: int | None = None,
    weights: str | None = None,
    cache: str | None = None,
    routing: str | None = None,
    trust_remote_code: bool = False,
    **workload: Any,
) -> SweepAnswer:
    """How cost, memory and time change with batch and context, exact at every point.

    - `model`: as in `lpo.trace`; or a function that was saved, which needs neither torch nor the model.
    - `batch`, `context`: a range `"1..512"` or `(1, 512)`, a list `"1,8,64"` or `[1, 8, 64]`, or one number. In a text
      k is 1,024. Of a range at most `points` round numbers are shown. Default: 1..64 and 1k..8k, or all of a function.
    - `device`, `execution`: for times and for what fits, as in `Trace.predict`. Default: neither.
    - `traces`: at most so many for each phase. Default: 40.
    - `weights`, `cache`, `routing` and the rest of the workload are those of `lpo.trace`.
    """
    hardware = None if device is None else find_hardware(device, devices_file)
    asked: dict[str, Any] = {"points": points, "device": hardware, "execution": execution}
    if Path(model).is_file():
        formats = {"weights": weights, "cache": cache, "routing": routing, "traces": traces}
        _refuse_with_function({**workload, **{name: value for name, value in formats.items() if value is not None}})
        return load_function(model).sweep(batch=batch, context=context, **asked)
    batches = read_range(DEFAULT_BATCH if batch is None else batch, BATCH, points=points)
    contexts = read_range(DEFAULT_CONTEXT if context is None else context, CONTEXT, points=points)
    _refuse_rows(batches, contexts)
    _refuse_workload(workload)
    traced = trace(
        model,
        device=hardware,
        weights=weights,
        cache=cache,
        routing=routing,
        trust_remote_code=trust_remote_code,
        batch=batches.low,
        **workload,
    )
    _refuse_short(traced.graphs[0], contexts)
    log.info(
        "Making a function of batch %s and context %s: some traces of small points, and some that check it",
        range_text(batches),
        range_text(contexts),
    )
    function = traced.over(batch=batches.ends, context=contexts.ends, traces=traces)
    return function.sweep(batch=batches, context=contexts, **asked)


def _refuse_with_function(given: Mapping[str, Any]) -> None:
    for name in given:
        raise UsageError(
            f"A saved function takes no {name}.",
            why="its workload and its formats are those that it was made with",
            fix=f"leave {name} out, or name the model",
        )


def default_sweep(trace: Trace, device: Hardware | None) -> SweepAnswer:
    """A traced model over the default ranges; a context that its images exceed begins behind them."""
    batches, contexts = read_range(DEFAULT_BATCH, BATCH), read_range(DEFAULT_CONTEXT, CONTEXT)
    longer = 2 ** media_tokens(trace.graphs[0]).bit_length()
    if contexts.low < longer:
        contexts = read_range((longer, contexts.high * longer // contexts.low), CONTEXT)
    return trace.over(batch=batches.ends, context=contexts.ends).sweep(batch=batches, context=contexts, device=device)


def media_tokens(graph: CallGraph) -> int:
    """What images and sound add to the prompt."""
    prompt = graph.workload.get("prompt_tokens", 0)
    return int(graph.workload.get("context_tokens", prompt)) - int(prompt)


def _refuse_rows(batches: NumberRange, contexts: NumberRange) -> None:
    rows = len(batches.values) * len(contexts.values)
    if rows > MOST_ROWS:
        raise UsageError(
            f"{rows:,} points are too many to show.",
            why=f"a table has at most {MOST_ROWS:,}",
            fix="ask for fewer with --points, or ask the function: trace.over(...).figures(...)",
        )


def _refuse_workload(workload: dict[str, Any]) -> None:
    if "prompt_tokens" in workload:
        raise UsageError(
            "A sweep takes no prompt_tokens.", why="its context is the prompt and the image tokens", fix="give context"
        )
    if workload.get("decode_steps", 1) > 1:
        raise UsageError(
            "A sweep takes at most one decode step.",
            why="each point is one step at one context",
            fix="leave decode_steps out; a later step is a point with a longer context",
        )


def _refuse_short(graph: CallGraph, contexts: NumberRange) -> None:
    """A context that the images alone exceed."""
    media = media_tokens(graph)
    if contexts.low < media:
        raise UsageError(
            f"A context of {contexts.low:,} tokens is too short.",
            why=f"images and sound take {media:,} of it",
            fix=f"begin at {media + 1:,} or more",
        )


def sweep_answer(
    function: TraceFunction,
    trace_phase: Callable[[str, Any], CallGraph],
    *,
    batches: NumberRange,
    contexts: NumberRange,
    device: Hardware | None,
    execution: str,
) -> SweepAnswer:
    """The function at every point of the grid; `trace_phase` traces a point that no cell proves."""
    _refuse_rows(batches, contexts)
    one = None if device is None else device_of(device)
    cluster = None if device is None else cluster_of(device)
    rates = None if one is None else DataSheetRates(one, Execution(execution), cluster=cluster)
    phases = tuple(_phase_sweep(one, rates, trace_phase, function.workload.new_tokens) for one in function.phases)
    pairs: list[Pair] = [*product(batches.values, contexts.values)]
    unproven = {pair for phase in phases for pair, held in zip(pairs, phase.proven(pairs), strict=True) if not held}
    can_trace = function.origin is not None and len(unproven) <= MOST_TRACED
    points = tuple(_points(phases, pairs, traced=can_trace))
    failed = {(point.batch, point.context) for point in points if point.failure is not None}
    batch, context = min(pairs, key=lambda pair: (pair in failed, pair in unproven))
    graphs = function.at(batch=batch, context=context).graphs
    steps = [phase for phase in phases if phase.phase != PREFILL]
    serving = None if one is None else traced_needs(graphs, one)
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
    )


def _phase_sweep(
    function: PhaseFunction,
    rates: DataSheetRates | None,
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
