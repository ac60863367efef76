"""What was measured next to what is predicted of the very same work, and the prediction corrected by the factor.

For a measurement of another workload the model is traced again with that workload.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.core.units import format_count, format_ratio, format_seconds
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.measurements.correction import centre
from llm_perf_opt.measurements.correction_report import (
    Applied,
    Correction,
    MatchedTime,
    MeasuredPoint,
    PredictedPoint,
    applied,
    batch_of,
    context_of,
    corrected,
    recorded_run,
    steps_of,
)
from llm_perf_opt.measurements.join.join_report import Joined, read_joined
from llm_perf_opt.measurements.measurement import MeasuredRun, Measurement, Quantity
from llm_perf_opt.measurements.read import Measured, read_measured
from llm_perf_opt.timing.predict import StageTime, predict
from llm_perf_opt.timing.rates import RateSource
from llm_perf_opt.tracing.traced_run import TracedRun, trace_origin

log = logging.getLogger(__name__)

PhaseTimes = tuple[tuple[StageTime, ...], ...]
_MOST_POINTS = 8  # that are predicted by tracing the model again

Given = str | Path | Measured | Sequence[str | Path]


@dataclass(eq=False, kw_only=True)
class MeasuredPoints:
    """Predictions at measured workloads, each made once; and what must be said of them."""

    trace: TracedRun
    source: RateSource
    times: PhaseTimes
    warnings: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    _known: dict[object, PredictedPoint | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = own_point(self.trace.graphs, self.times)
        if (plan := self.trace._plan) is not None and plan.pp > 1:
            self.warnings.append(
                f"A request passes {plan.pp} stages of the pipeline, and its time is compared with the first alone. "
                "So the factors contain the other stages too."
            )

    def at(self, run: MeasuredRun, quantity: Quantity) -> PredictedPoint:
        """The prediction of what was measured: of the trace itself, or of the model traced with that workload."""
        if run.workload is not None:
            return self._at_workload(run)
        batch, context = self._wanted(run, quantity)
        if (batch, context) == (self.own.batch, self.own.context):
            return self.own
        origin = self.trace.origin
        changed = None
        if origin is not None and context is not None:
            media = (self.own.context or 0) - int(self.trace.graphs[0].workload.get("prompt_tokens", 0) or 0)
            prompt = context - media if context > media else context
            changed = replace(origin.workload, batch=batch or 1, prompt_tokens=prompt, decode_steps=1)
        known = (("batch", batch), ("context", context))
        words = ", ".join(f"{name} {format_count(value)}" for name, value in known if value is not None)
        return self._made((batch, context), changed, words, run)

    def _wanted(self, run: MeasuredRun, quantity: Quantity) -> tuple[int | None, int | None]:
        """A server prefills each request by itself, and decodes those in flight together."""
        if quantity is Quantity.TPOT:
            return run.sequences or self.own.batch, run.decode_context or self.own.context
        alone = 1 if run.concurrency is not None else self.own.batch
        return run.batch or alone, run.input_tokens or self.own.context

    def compared_s(self, run: MeasuredRun, time: Measurement, scale: float, seconds: float) -> float | None:
        """What the time is compared with: `seconds`, and what other requests of a loaded server add to it.

        None, and a warning, where the file does not tell how much that is: a wait is not the speed of a device.
        """
        others = (run.concurrency or 1) - 1
        if not others or time.quantity is Quantity.STAGE:
            return seconds
        if time.quantity is Quantity.TTFT:
            self.warnings.append(
                f"{run.file}: the TTFT of {format_seconds(time.seconds)} corrects nothing. With {run.concurrency:,} "
                f"requests in flight it contains a wait for others besides a prefill of {format_seconds(seconds)}, and "
                "the file does not tell how long. Measure one request at a time, or replay the load: plan --traffic."
            )
            return None
        if run.output_tokens is None:
            self.warnings.append(
                f"{run.file}: the TPOT corrects nothing. With {run.concurrency:,} requests in flight, others' prompts "
                "run between two steps; their number follows from the output tokens, which the file does not have."
            )
            return None
        prompt_s = self.at(run, Quantity.TTFT).seconds(Measurement(quantity=Quantity.TTFT, samples_s=(1.0,)), None)
        self.remarks.append(
            f"With {run.concurrency:,} requests in flight a TPOT is compared with a step and the share of the others' "
            f"prompts: {format_seconds(seconds)} + {others:,} x {format_seconds(prompt_s)} / {run.output_tokens:,} "
            "output tokens."
        )
        return seconds + scale * others * prompt_s / run.output_tokens

    def _at_workload(self, run: MeasuredRun) -> PredictedPoint:
        header, origin = self.trace.graphs[-1].workload, self.trace.origin
        assert run.workload is not None
        differing = [
            name
            for name, value in run.workload.items()
            if name in header and name != "decode_steps" and header[name] != value
        ]
        if not differing and self.own.steps == run.workload.get("decode_steps", 1):
            return self.own
        names = ", ".join(
            f"{name} {run.workload[name]}" for name in (*differing, "decode_steps") if name in run.workload
        )
        changed = None if origin is None else type(origin.workload).from_header(run.workload)
        point = self._made(tuple(sorted(map(str, run.workload.items()))), changed, names, run)
        return point if differing or point is self.own else replace(point, is_same_point=True)

    def _made(self, key: object, workload: Workload | None, words: str, run: MeasuredRun) -> PredictedPoint:
        if key not in self._known:
            self._known[key] = self._traced(workload, words, run)
        point = self._known[key]
        return self.own if point is None else point

    def _traced(self, workload: Workload | None, words: str, run: MeasuredRun) -> PredictedPoint | None:
        """The model traced with another workload; None, and a warning, where that cannot be."""
        origin, why = self.trace.origin, "a saved trace holds no model to trace with that workload"
        if origin is not None and workload is not None and not origin.is_module and len(self._known) < _MOST_POINTS:
            log.info("Predicting what was measured: %s.", words)
            try:
                graphs = trace_origin(replace(origin, workload=workload)).graphs
                times = tuple(tuple(predict(graph, self.source)) for graph in graphs)
                return replace(own_point(graphs, times), is_same_point=False)
            except PerfOptError as refusal:
                why = refusal.what
        elif len(self._known) >= _MOST_POINTS:
            why = f"more than {_MOST_POINTS} workloads were measured"
        self.warnings.append(
            f"{run.file} was measured with {words}: it is compared with the prediction of another workload, {why}."
        )
        return None

    def is_contradicted(self, run: MeasuredRun) -> bool:
        """Whether the measurement names another model or another device than the prediction."""
        own_names = {_plain(name) for name in (self.trace.name, *(graph.model for graph in self.trace.graphs))}
        given = None if run.model is None else _plain(run.model)
        is_other = given is not None and not any(given in name or name in given for name in own_names if name)
        if is_other:
            self.warnings.append(
                f"{run.file} was measured on the model {run.model}, and the prediction is of {self.trace.name}: the "
                "factors may be wrong here, so the band keeps its width."
            )
        device = self.source.device
        if device is None or run.device is None or _is_device(run.device, device):
            return is_other
        self.warnings.append(
            f"{run.file} was measured on {run.device}, and the prediction is for {device.name}: the factors may be "
            "wrong here, so the band keeps its width."
        )
        return True

    def require_possible(self, point: MeasuredPoint) -> None:
        """Refuse a time that no implementation of this work reaches on this device."""
        if point.lower_bound_s is None or point.measured_s >= point.lower_bound_s:
            return
        device = self.source.device
        text = (
            f"{point.file}: the measured {point.what} of {format_seconds(point.measured_s)} is below the lower bound "
            f"of {format_seconds(point.lower_bound_s)}"
        )
        if device is not None and device.is_measured:
            self.warnings.append(f"{text}, which rests on measured rates.")
            return
        raise PerfOptError(
            f"{text}.",
            why=f"no implementation of {self.trace.name} at {point.where or 'this workload'} is as fast on "
            f"{self.source.title}: the measurement is of another model, workload, device, weight format or number of "
            "devices",
            fix="predict what was measured: --batch, --prompt-tokens, --device, --weights, a plan; or correct the file",
        )


def _plain(name: str) -> str:
    """The last part of a name or path, letters and digits alone."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(char for char in last.lower() if char.isalnum())


def _is_device(name: str, device: Device) -> bool:
    given = _plain(name)
    known = {_plain(reported_name) for reported_name in (device.id, device.name, *device.reported_names)}
    return any(given in name or name in given for name in known if name)


def own_point(graphs: Sequence[CallGraph], times: PhaseTimes) -> PredictedPoint:
    """The phases of a trace with their times, as a point."""
    last = graphs[-1]
    return PredictedPoint(
        times={graph.phase: stages for graph, stages in zip(graphs, times, strict=True)},
        steps=next((steps_of(graph) for graph in graphs if graph.phase == DECODE), 1),
        batch=batch_of(last),
        context=context_of(last),
        is_same_point=True,
    )


def matched_times(run: MeasuredRun, maker: MeasuredPoints) -> Iterator[MatchedTime]:
    """Every time of a run that a stage of the prediction belongs to. One that cannot be is refused."""
    is_other = maker.is_contradicted(run)
    for time in run.times:
        predicted = maker.at(run, time.quantity)
        seconds, bound_s = predicted.seconds(time, run.phase), predicted.bound_s(time, run.phase)
        if not seconds:
            maker.warnings.append(
                f"{run.file}: {time.stage or time.quantity} corrects nothing: no stage here has that name."
            )
            continue
        scale = run.tokens_per_step if time.quantity is Quantity.TPOT else 1.0
        if (compared_s := maker.compared_s(run, time, scale, seconds)) is None:
            continue
        if scale > 1:
            maker.remarks.append(
                f"A step gave {scale:.3g} tokens on average (speculative decoding): the measured TPOT is multiplied "
                "by it."
            )
        point = MeasuredPoint(
            source=run.source,
            file=run.file,
            quantity=time.quantity,
            stage=time.stage,
            statistic=time.statistic,
            samples=len(time.samples_s),
            measured_s=time.seconds * scale,
            predicted_s=compared_s,
            lower_bound_s=bound_s,
            factor=time.seconds * scale / compared_s,
            batch=predicted.batch,
            context=predicted.context,
            is_same_point=predicted.is_same_point,
        )
        maker.require_possible(point)
        yield MatchedTime(run=run, time=time, scale=scale, predicted=predicted, point=point, is_contradicted=is_other)


def joined_run(trace: TracedRun, path: Path, maker: MeasuredPoints) -> MeasuredRun:
    """A recording on the phase that explains most of it."""

    def explained(joined: Joined) -> float:
        return joined.attributed * min(1.0, joined.found_flops or 0.0)

    device = maker.source.device
    graph, best = max(
        ((graph, read_joined(graph, path, device=device)) for graph in trace.graphs),
        key=lambda pair: explained(pair[1]),
    )
    if not best.is_complete:
        maker.warnings.append(
            f"{path.name} does not fit the {graph.phase} of this trace: {format_ratio(best.attributed)} of its time is "
            "attributed."
        )
    recording = best.recording
    return recorded_run(best.joined, graph, file=path.name, source=recording.source, device=recording.device_name)


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
    matches = [matched for run in runs for matched in matched_times(run, maker)]
    if not matches:
        raise PerfOptError(
            "Nothing of this prediction was measured.",
            why=" ".join(maker.warnings)
            or "the measurement holds "
            + ", ".join(dict.fromkeys(_names(runs)))
            + f", and the prediction has the stages {', '.join(stage.name for phase in times for stage in phase)}",
            fix="predict the model that was measured, with a decode step for a TPOT",
        )
    own = maker.own
    fits = tuple(applied(matches))
    after_all, changes = [], []
    for graph, stages in zip(trace.graphs, times, strict=True):
        after = [corrected(stage, graph, own, fits) for stage in stages]
        after_all.append(tuple(stage for stage, _ in after))
        changes += [change for _, change in after if change is not None]
    everything = sum(centre(stage.wall) for phase in after_all for stage in phase)
    share = sum(change.after_s for change in changes) / everything if everything else 0.0
    correction = Correction(
        points=tuple(matched.point for matched in matches),
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
