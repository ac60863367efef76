"""The figures of points: phases put together, whole runs, throughput and cost.

Every value is a number, None, or a column of many points, so that one formula serves a single trace and a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.sweeps.function.figures.times import TimeColumns
from llm_perf_opt.sweeps.function.form import Column
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.studies.study_columns import DECODE, FIGURES, HELD, PREFILL, TIMES
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.timing.predict import StageTime, stage_time
from llm_perf_opt.timing.rank_bound import least_collectives
from llm_perf_opt.timing.rates import RateSource, StagePieces
from llm_perf_opt.timing.stage_work import StageWork, stage_works

Value = Any  # None, a number, or a column
Figures = dict[str, Value]
CHUNK = 1 << 16  # points evaluated at once: what bounds the memory of a process
_MILLION, _HOUR_S = 1e6, 3600.0


def time_figures(times: TimeColumns) -> Figures:
    """The times of one phase at many points."""
    figures: Figures = {name: getattr(times, name) for name in TIMES}
    figures["bound_by"] = [None if bound is None else str(bound) for bound in times.bound_by]
    figures["untimed_ops"] = times.untimed_ops
    return figures


def together(phases: Sequence[Figures]) -> Figures:
    """Phases that run one after the other: work and time add up, memory is the largest; unknown stays unknown."""
    if len(phases) == 1:
        return phases[0]
    figures: Figures = {}
    for name in phases[0]:
        values = [phase[name] for phase in phases]
        if any(value is None for value in values):
            figures[name] = None
        elif name == "bound_by":
            figures[name] = _of_slowest(phases)
        else:
            figures[name] = _most(values) if name in HELD else sum(values)
    return figures


def _of_slowest(phases: Sequence[Figures]) -> Value:
    highs = np.stack([np.atleast_1d(phase["high_s"]) for phase in phases])
    limits = [np.atleast_1d(np.asarray(phase["bound_by"], dtype=object)) for phase in phases]
    return [limits[phase][place] for place, phase in enumerate(np.argmax(highs, axis=0))]


def _most(values: Sequence[Value]) -> Value:
    if all(isinstance(value, int | float) for value in values):
        return max(values)
    most = values[0]
    for value in values[1:]:
        most = np.maximum(most, value)
    return most


def named(prefix: str, figures: Figures) -> Figures:
    """The figures with the names of a row."""
    return {f"{prefix}_{name}": value for name, value in figures.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What turns times into throughput and cost, for one deployment."""

    generated_tokens: int
    memory_bytes: int
    price_per_hour: float | None


def whole_run(point: Figures, batch: Value, served_batch: Value, priced: Priced) -> Figures:
    """What follows from the times of a prefill, of the first decode step and of the last one.

    A step reads a longer cache than the one before, so each takes at least the first step's low estimate and at most
    the last step's high estimate.
    """
    steps = priced.generated_tokens if point.get(f"{DECODE}_low_s") is not None else 0
    first = {name: point.get(f"{DECODE}_{name}") if steps else 0.0 for name in ("lower_bound_s", "low_s")}
    last = point.get("last_step_high_s") if steps else 0.0
    low = _added(point.get(f"{PREFILL}_low_s"), first["low_s"], steps)
    high = _added(point.get(f"{PREFILL}_high_s"), last, steps)
    step_low, step_high = point.get(f"{DECODE}_low_s"), point.get(f"{DECODE}_high_s")
    requests = _rates(batch, low, high)
    tokens = _rates(batch, step_low, step_high)
    fits_as_traced = _fits(point, priced.memory_bytes)
    fits_served = None if served_batch is None else batch <= served_batch
    holds = fits_as_traced if fits_served is None else fits_served
    price = None if holds is False else priced.price_per_hour
    # Where the length of answers is known, a token costs its share of a request, the prefill included.
    of_answers = {edge: None if rate is None else rate * steps for edge, rate in requests.items()}
    generated = of_answers if steps else tokens
    spent = {**costs("requests", requests, price), **costs("tokens", generated, price)}
    return {
        "run_lower_bound_s": _added(point.get(f"{PREFILL}_lower_bound_s"), first["lower_bound_s"], steps),
        "run_low_s": low,
        "run_high_s": high,
        **{f"requests_per_s_{edge}": value for edge, value in requests.items()},
        **{f"tokens_per_s_{edge}": value for edge, value in tokens.items()},
        **{name: _where(holds, cost) for name, cost in spent.items()},
        "price_per_hour": priced.price_per_hour,
        "memory_bytes": priced.memory_bytes,
        "fits_as_traced": fits_as_traced,
        "served_global_batch": served_batch,
        "fits_served": fits_served,
    }


def _where(holds: Value, cost: Value) -> Value:
    """A column of costs, masked at points that do not fit."""
    return np.ma.masked_where(~holds, cost) if isinstance(holds, np.ndarray) and cost is not None else cost


def _added(prefill: Value, step: Value, steps: int) -> Value:
    return None if prefill is None or step is None else prefill + step * steps


def _rates(batch: Value, low_s: Value, high_s: Value) -> dict[str, Value]:
    return {"low": None if high_s is None else batch / high_s, "high": None if low_s is None else batch / low_s}


def costs(what: str, rates: Mapping[str, Value], price: float | None) -> Figures:
    """The cost of a million requests or tokens; the low rate gives the high cost."""
    cost_figures = {}
    for end, other in (("low", "high"), ("high", "low")):
        rate = rates[other]
        cost = None if rate is None or price is None else price / _HOUR_S / rate * _MILLION
        cost_figures[f"cost_per_million_{what}_{end}"] = cost
    return cost_figures


def _fits(point: Figures, memory_bytes: int) -> Value:
    needs = [point[name] for name in (f"{PREFILL}_needed_bytes", f"{DECODE}_needed_bytes") if name in point]
    if not needs or any(need is None for need in needs):
        return None
    return _most(needs) <= memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PointBlock:
    """Points of one deployment, as columns. `proven` holds for all of them, or for none."""

    batch: Column  # of all replicas
    context: Column
    is_proven: bool
    figures: Figures


def function_blocks(
    phases: Sequence[PhaseFunction],
    batches: Sequence[int],
    contexts: Sequence[int],
    replicas: int,
    generated_tokens: int,
    rates: RateSource,
) -> Iterator[PointBlock]:
    """A function at every pair of a batch and a context, this many at a time; what no cell proves comes apart."""
    every_batch, every_context = np.asarray(batches, np.int64), np.asarray(contexts, np.int64)
    total = len(every_batch) * len(every_context)
    for start in range(0, total, CHUNK):
        places = np.arange(start, min(start + CHUNK, total))
        batch, context = every_batch[places // len(every_context)], every_context[places % len(every_context)]
        steps = max(generated_tokens, 1) - 1
        divides = batch % replicas == 0
        for phase in phases:
            divides &= phase.cell_of_points({"batch": batch // replicas, "context": context}) >= 0
            if phase.phase == DECODE and steps:
                divides &= phase.cell_of_points({"batch": batch // replicas, "context": context + steps}) >= 0
        if divides.any():
            proven = (batch, context) if divides.all() else (batch[divides], context[divides])
            points = {"batch": proven[0] // replicas, "context": proven[1]}
            yield PointBlock(
                batch=proven[0], context=proven[1], is_proven=True, figures=_evaluated(phases, points, rates, steps)
            )
        if not divides.all():
            yield PointBlock(batch=batch[~divides], context=context[~divides], is_proven=False, figures={})


def _evaluated(phases: Sequence[PhaseFunction], points: dict[str, Column], rates: RateSource, steps: int) -> Figures:
    before, decode = [], None
    last_high_s = None
    for phase in phases:
        columns = {**phase.figures(points, FIGURES), **time_figures(phase.times(points, rates))}
        if phase.phase != DECODE:
            before.append(columns)
            continue
        decode, last_high_s = columns, columns["high_s"]
        if steps:
            later = {"batch": points["batch"], "context": points["context"] + steps}
            last_high_s = np.maximum(phase.times(later, rates).high_s, columns["high_s"])
    figures = named(PREFILL, together(before)) if before else {}
    return figures if decode is None else {**figures, **named(DECODE, decode), "last_step_high_s": last_high_s}


# The time of one traced phase on many devices: what does not depend on the device is worked out once.
#
# `predict` follows every weight through the graph before it times a kernel; for a study the first part is the same for
# all devices of a format, and takes most of the time. The figures are equal to `predict`, to the last digit.


@dataclass(frozen=True)
class TimedPhase:
    """A phase that is timed on several devices."""

    graph: CallGraph

    @cached_property
    def _works(self) -> tuple[StageWork, ...]:
        return stage_works(self.graph)

    @cached_property
    def _collectives(self) -> Mapping[str, Mapping[Collective, int]]:
        return least_collectives(self.graph)

    @cached_property
    def _known(self) -> dict[Execution, Mapping[str, StagePieces]]:
        return {}

    def _pieces(self, rates: RateSource) -> Mapping[str, StagePieces]:
        """The kernels. For a data sheet they depend on who launches them alone; other sources are asked each time."""
        if not isinstance(rates, DataSheetRates):
            return rates.pieces(self.graph, self._works)
        if rates.execution not in self._known:
            self._known[rates.execution] = rates.pieces(self.graph, self._works)
        return self._known[rates.execution]

    def predict(self, rates: RateSource) -> tuple[StageTime, ...]:
        """Every stage in which something runs that takes time, in order."""
        pieces_of = self._pieces(rates)
        least = {} if rates.cluster is None else self._collectives
        return tuple(
            stage_time(work, stage.pieces, rates, least.get(work.name), stage.expected_s)
            for work in self._works
            if (stage := pieces_of[work.name]).pieces
        )
