"""A prediction corrected by what the user measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.api.per_rank import ranks_answer
from llm_perf_opt.api.prediction import PredictionAnswer, predicted_stage
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.measurements.correction import Remaining, centre, corrected_band
from llm_perf_opt.measurements.measured_points import Corrected, Given, PhaseTimes, corrected_others, corrected_times
from llm_perf_opt.sweeps.predicted_run import PredictedRun, PredictedSteps
from llm_perf_opt.timing.predict import total_wall
from llm_perf_opt.timing.rates import Band
from llm_perf_opt.tracing.traced_run import TracedRun


def corrected_prediction(trace: TracedRun, answer: PredictionAnswer, measured: Given) -> PredictionAnswer:
    """The prediction of a trace, corrected by what was measured; every kind of rank by the same factors."""
    source = answer._source
    corrected = corrected_times(trace, source, answer._times, measured)
    phases = trace.phases
    kinds = [rank.graphs for rank in trace.ranks]
    others = [corrected_others(graphs, source, corrected) for graphs in kinds[1:]]
    return replace(
        answer,
        stages=tuple(
            predicted_stage(phase, stage)
            for phase, times in zip(phases, corrected.times, strict=True)
            for stage in times
        ),
        ranks=None if answer.ranks is None else ranks_answer(kinds, source, [corrected.times, *others]),
        run=None if answer.run is None else _corrected_run(answer.run, answer._times, corrected, phases),
        correction=corrected.correction,
        _times=corrected.times,
    )


def _corrected_run(run: PredictedRun, before: PhaseTimes, by: Corrected, phases: Sequence[str]) -> PredictedRun:
    """A prefill and many steps with the corrected times: every step as the first one was."""
    first = [stage for phase, stages in zip(phases, by.times, strict=True) if phase != DECODE for stage in stages]
    wall = total_wall(first)
    old = [stage for phase, stages in zip(phases, before, strict=True) if phase == DECODE for stage in stages]
    new = [stage for phase, stages in zip(phases, by.times, strict=True) if phase == DECODE for stage in stages]
    run = replace(run, prefill_low_s=wall.low, prefill_high_s=wall.high, prefill_expected_s=wall.expected)
    was, now = total_wall(old), total_wall(new)
    if was == now:
        return run
    factor = centre(now) / centre(was)
    left = Remaining(low=now.low / centre(now), high=now.high / centre(now), why="")

    def steps(part: PredictedSteps | None) -> PredictedSteps | None:
        if part is None:
            return None
        band = corrected_band(Band(part.low_s, part.high_s, part.expected_s), factor, left, part.lower_bound_s or 0.0)
        return replace(part, low_s=band.low, high_s=band.high, expected_s=band.expected)

    return replace(run, decode=steps(run.decode), first_step=steps(run.first_step), last_step=steps(run.last_step))
