"""A prediction that is corrected by what the user measured: read it, predict the same work, carry the factor over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.api.measured_points import MeasuredPoints, PhaseTimes, found_times, joined_run, own_point
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.measurements.correction import Remaining, centre, corrected_band
from llm_perf_opt.measurements.correction_report import Applied, Correction, applied, corrected
from llm_perf_opt.measurements.measurement import MeasuredRun
from llm_perf_opt.measurements.read import Measured, read_measured
from llm_perf_opt.sweeps.predicted_run import PredictedRun, PredictedSteps
from llm_perf_opt.timing.predict import predict, total_wall
from llm_perf_opt.timing.rates import Band, RateSource
from llm_perf_opt.tracing.traced_run import TracedRun

Given = str | Path | Measured | Sequence[str | Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The times of every phase after a correction, and what it was."""

    times: PhaseTimes
    correction: Correction
    factors: tuple[Applied, ...]


def read_given(measured: Given) -> Measured:
    """What was measured, from files, folders and lines; as it is where it was read before."""
    return measured if isinstance(measured, Measured) else read_measured(measured)


def corrected_times(trace: TracedRun, source: RateSource, times: PhaseTimes, measured: Given) -> Corrected:
    """The prediction of a trace, corrected. A measurement below the lower bound of its own work is refused."""
    given = read_given(measured)
    maker = MeasuredPoints(trace=trace, source=source, times=times)
    runs = (*given.runs, *(joined_run(trace, path, maker) for path in given.recordings))
    found = [one for run in runs for one in found_times(run, maker)]
    if not found:
        raise PerfOptError(
            "Nothing of this prediction was measured.",
            why=" ".join(maker.warnings)
            or "the measurement holds "
            + ", ".join(dict.fromkeys(_names(runs)))
            + f", and the prediction has the stages {', '.join(stage.name for phase in times for stage in phase)}",
            fix="predict the model that was measured, with a decode step for a TPOT",
        )
    own = maker.own
    fits = tuple(applied(found))
    after_all, changes = [], []
    for graph, stages in zip(trace.graphs, times, strict=True):
        after = [corrected(stage, graph, own, fits) for stage in stages]
        after_all.append(tuple(stage for stage, _ in after))
        changes += [change for _, change in after if change is not None]
    everything = sum(centre(stage.wall) for phase in after_all for stage in phase)
    share = sum(change.after_s for change in changes) / everything if everything else 0.0
    correction = Correction(
        points=tuple(one.point for one in found),
        stages=tuple(changes),
        corrected_share=share,
        warnings=tuple(dict.fromkeys(maker.warnings)),
        remarks=tuple(dict.fromkeys(maker.remarks)),
    )
    return Corrected(times=tuple(after_all), correction=correction, factors=fits)


def corrected_others(graphs: Sequence[CallGraph], source: RateSource, by: Corrected) -> PhaseTimes:
    """The phases of another kind of rank, corrected by the same factors."""
    times = tuple(tuple(predict(graph, source)) for graph in graphs)
    own = own_point(graphs, times)
    return tuple(
        tuple(corrected(stage, graph, own, by.factors)[0] for stage in stages)
        for graph, stages in zip(graphs, times, strict=True)
    )


def _names(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    return (time.stage or str(time.quantity) for run in runs for time in run.times)


def corrected_run(run: PredictedRun, before: PhaseTimes, by: Corrected, phases: Sequence[str]) -> PredictedRun:
    """A prefill and many steps with the corrected times: every step as the first one was."""
    first = [stage for phase, found in zip(phases, by.times, strict=True) if phase != DECODE for stage in found]
    wall = total_wall(first)
    old = [stage for phase, found in zip(phases, before, strict=True) if phase == DECODE for stage in found]
    new = [stage for phase, found in zip(phases, by.times, strict=True) if phase == DECODE for stage in found]
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
