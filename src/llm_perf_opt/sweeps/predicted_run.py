"""A prefill and many decode steps as one prediction: the decode step is a function of its context, added up.

Step `i` after a context of C tokens finds C + i of them in the cache. A few traces make the function, and one
evaluation answers all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import found_once
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table
from llm_perf_opt.core.units import format_count
from llm_perf_opt.core.work_limits import refuse_decode_steps
from llm_perf_opt.costs.memory.kv_cache import DECODE
from llm_perf_opt.timing.predict import StageTime, total_wall
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    from llm_perf_opt.sweeps.function.figures.times import TimeColumns
    from llm_perf_opt.sweeps.function.phase_function import PhaseFunction

RUN_TABLE = "The whole run"
RUN_TRACES = 24  # at most, to find the function of the decode step


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSteps:
    """One or more decode steps. `context` is what the first of them finds in the cache, for each sequence.

    `expected_s` is the time of a calibration. None is unknown.
    """

    steps: int
    context: int
    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None
    bound_by: str | None  # None: not known, or not the same for all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """A prefill and `decode_steps` steps after it, as many tokens for each sequence of the batch.

    `decode` is all steps together, None where no function of the context is proven for all of them; `open_because` then
    says why. `origin` is how the steps were evaluated, `traces` how many were made for it.
    """

    decode_steps: int
    batch: int
    context: int  # tokens of each sequence after the prefill
    prefill_lower_bound_s: float | None
    prefill_low_s: float
    prefill_high_s: float
    prefill_expected_s: float | None
    decode: PredictedSteps | None
    first_step: PredictedSteps | None
    last_step: PredictedSteps | None
    origin: str | None
    traces: int
    open_because: str | None

    @property
    def lower_bound_s(self) -> float | None:
        """Prefill and all steps."""
        bound = None if self.decode is None else self.decode.lower_bound_s
        return None if bound is None or self.prefill_lower_bound_s is None else self.prefill_lower_bound_s + bound

    @property
    def low_s(self) -> float | None:
        """The low estimate of the same."""
        return None if self.decode is None else self.prefill_low_s + self.decode.low_s

    @property
    def high_s(self) -> float | None:
        """The high estimate of the same."""
        return None if self.decode is None else self.prefill_high_s + self.decode.high_s

    @property
    def decode_tokens_per_s_low(self) -> float | None:
        """Tokens of all sequences for each second of decoding, on average, at the high estimate of the time."""
        return None if self.decode is None else self.batch * self.decode_steps / self.decode.high_s

    @property
    def decode_tokens_per_s_high(self) -> float | None:
        """The same at the low estimate of the time."""
        return None if self.decode is None else self.batch * self.decode_steps / self.decode.low_s


def predicted_run(
    trace: TracedRun, times: tuple[tuple[StageTime, ...], ...], rates: RateSource, decode_steps: int
) -> PredictedRun | None:
    """The run of these steps; None where the model does not decode. `times` has the stages of each phase."""
    decode = next((graph for graph in trace.graphs if graph.phase == DECODE), None)
    if decode is None or decode_steps < 1:
        return None
    refuse_decode_steps(decode_steps)
    before = [stage for graph, spent in zip(trace.graphs, times, strict=True) if graph is not decode for stage in spent]
    wall, bounds = total_wall(before), [stage.lower_bound_s for stage in before]
    decode_times, traces, reason = _decode_times(trace, decode, rates, decode_steps)
    context = _context(decode)
    return PredictedRun(
        decode_steps=decode_steps,
        batch=_batch(decode),
        context=context,
        prefill_lower_bound_s=None if None in bounds else sum(bound or 0.0 for bound in bounds),
        prefill_low_s=wall.low,
        prefill_high_s=wall.high,
        prefill_expected_s=wall.expected,
        decode=None if decode_times is None else _steps(decode_times, slice(None), context),
        first_step=None if decode_times is None else _steps(decode_times, slice(0, 1), context),
        last_step=None if decode_times is None else _steps(decode_times, slice(-1, None), context + decode_steps - 1),
        origin=None if decode_times is None else str(decode_times.origin),
        traces=traces,
        open_because=reason,
    )


def _decode_times(
    trace: TracedRun, decode: CallGraph, rates: RateSource, steps: int
) -> tuple[TimeColumns | None, int, str | None]:
    """The times of all steps, the traces that were made, and why there are no times."""
    import numpy as np

    phase = _decode_function(trace, decode, steps)
    context = _context(decode)
    points = {"batch": np.full(steps, _batch(decode)), "context": np.arange(context, context + steps)}
    if (phase.cell_of_points(points) < 0).any():
        reasons = "; ".join(dict.fromkeys(str(region.why) for region in phase.open_regions))
        return None, phase.traces, reasons or "no cell is proven"
    try:
        return phase.times(points, rates), phase.traces, None
    except PerfOptError as refusal:
        return None, phase.traces, str(refusal)


@found_once
def _decode_function(trace: TracedRun, decode: CallGraph, steps: int) -> PhaseFunction:
    """The decode step as a function of its context; it holds for every device."""
    from llm_perf_opt.sweeps.run_function import trace_function

    origin = trace.origin
    if origin is not None:
        origin = replace(origin, workload=replace(origin.workload, decode_steps=1, batch=_batch(decode)))
    context, batch = _context(decode), _batch(decode)
    one_step = replace(trace, graphs=(decode,), origin=origin)
    function = trace_function(one_step, batch=batch, context=(context, context + steps - 1), traces=RUN_TRACES)
    return function.phase(DECODE)


def _context(decode: CallGraph) -> int:
    workload = decode.workload
    return int(workload.get("context_tokens", workload.get("prompt_tokens", 0)))


def _batch(decode: CallGraph) -> int:
    return int(decode.workload.get("batch", 1))


def _steps(times: TimeColumns, which: slice, context: int) -> PredictedSteps:
    bounds = times.lower_bound_s
    limits = {str(bound) for bound in times.bound_by[which] if bound is not None}
    return PredictedSteps(
        steps=len(times.low_s[which]),
        context=context,
        lower_bound_s=None if bounds is None else float(bounds[which].sum()),
        low_s=float(times.low_s[which].sum()),
        high_s=float(times.high_s[which].sum()),
        expected_s=None if times.expected_s is None else float(times.expected_s[which].sum()),
        bound_by=limits.pop() if len(limits) == 1 else None,
    )


def with_run(report: Report, run: PredictedRun | None) -> Report:
    """The report with the table of the run after the table of the stages, and a note on what it rests on."""
    if run is None:
        return report
    tables = (*report.tables[:1], _run_table(run), *report.tables[1:])
    return replace(report, tables=tables, notes=(_run_note(run), *report.notes))


def _run_note(run: PredictedRun) -> Note:
    steps = format_count(run.decode_steps)
    if run.decode is None:
        return Note(f"The {steps} decode steps are not added up: {run.open_because}.", Level.WARNING)
    return Note(
        f"The tables of stages, ops and memory show the first decode step. The table of the whole run adds up all "
        f"{steps}, each with one more token in the cache, {run.origin} from {run.traces} traces."
    )


def _run_table(run: PredictedRun) -> Table:
    """Tokens that a prefill computes or that decode steps generate; the last row counts generated tokens."""
    prefill = (run.prefill_lower_bound_s, run.prefill_expected_s)
    shown = [place for place, seconds in enumerate(prefill) if seconds is not None]
    names = ("lower bound", "predicted" if prefill[0] is None else "expected")
    columns = (
        Column("part"),
        *(Column(names[place], Kind.SECONDS) for place in shown),
        Column("low", Kind.SECONDS),
        Column("high", Kind.SECONDS),
        Column("tokens/s, low", Kind.COUNT),
        Column("tokens/s, high", Kind.COUNT),
    )

    def row(part: str, tokens: int, known: Sequence[float | None], low_s: float, high_s: float) -> tuple[Cell, ...]:
        slow, fast = (round(tokens / seconds) if seconds else None for seconds in (high_s, low_s))
        return part, *(known[place] for place in shown), low_s, high_s, slow, fast

    rows = [row("prefill", run.batch * run.context, prefill, run.prefill_low_s, run.prefill_high_s)]
    for part in (run.first_step, run.last_step, run.decode):
        if part is not None:
            known = (part.lower_bound_s, part.expected_s)
            rows.append(row(_name(part, run.context), run.batch * part.steps, known, part.low_s, part.high_s))
    footer: tuple[Cell, ...] = ("prefill and all steps", *(None for _ in columns[1:]))
    if run.decode is not None:
        rest = (run.decode.lower_bound_s, run.decode.expected_s)
        both = [None if None in pair else sum(part or 0.0 for part in pair) for pair in zip(prefill, rest, strict=True)]
        low, high = run.prefill_low_s + run.decode.low_s, run.prefill_high_s + run.decode.high_s
        footer = row("prefill and all steps", run.batch * run.decode_steps, both, low, high)
    return Table(title=RUN_TABLE, columns=columns, rows=tuple(rows), footer=footer)


def _name(part: PredictedSteps, context: int) -> str:
    if part.steps > 1:
        return f"{format_count(part.steps)} decode steps"
    return f"decode step {format_count(part.context - context + 1)}, after {format_count(part.context)} tokens"
