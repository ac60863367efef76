"""How fast a run could be: on a device from its figures, or on a machine that was calibrated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.analyses.memory.need import RunMemory, need_table, run_memory
from llm_perf_opt.analyses.run_description import deployment_notes
from llm_perf_opt.analyses.serving.fit import ServingFit, TracedFit, traced_fit, with_serving_fit
from llm_perf_opt.analyses.time.calibrated_rates import CalibratedRates
from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.predict import StageTime, predict
from llm_perf_opt.analyses.time.prediction_report import prediction_report
from llm_perf_opt.analyses.time.rates import RateSource
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.predicted_run import PredictedRun, predicted_run, with_run
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.hardware.calibration import Calibration, read_calibration
from llm_perf_opt.core.report import Level, Note, Report

if TYPE_CHECKING:
    from llm_perf_opt.api.trace import Trace

_AS_DENSE = Note(
    "The calibration timed products whose weights are not quantised: other formats are timed as if they were those.",
    Level.WARNING,
)
Rates = Device | Calibration  # where times come from


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStage:
    """One stage of one phase. No implementation is faster than `lower_bound_s`; a run is expected in low to high.

    `expected_s` is the time of a calibration, which measured medians; a device has none. `bound_by` names what limits
    the stage on a device: compute, bandwidth or launches. None is unknown.
    """

    phase: str
    name: str
    lower_bound_s: float | None
    low_s: float
    high_s: float
    expected_s: float | None
    launches: int | None
    bound_by: str | None

    @property
    def launch_bound(self) -> bool | None:
        """Whether launching kernels takes longer than running them; None: not known."""
        return None if self.bound_by is None else self.bound_by == "launches"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PredictionAnswer(Answer):
    """The time of every stage. With a device also whether the run fits, and whether a server holds its batch."""

    model: str
    machine: str  # that the times hold for
    device: Device | None  # None: the times are of a calibration
    execution: str
    stages: tuple[PredictedStage, ...]
    needed_bytes: int | None
    serving: ServingFit | None
    run: PredictedRun | None = None  # prefill and several decode steps, where they were asked for
    _graphs: tuple[CallGraph, ...]
    _rates: Rates
    _times: tuple[tuple[StageTime, ...], ...]  # of each graph
    _memory: RunMemory
    _fit: TracedFit | None  # what `serving` rests on

    @property
    def lower_bound_s(self) -> float | None:
        """All stages one after the other; one unknown stage makes the sum unknown."""
        bounds = [stage.lower_bound_s for stage in self.stages]
        return None if None in bounds else sum(bound for bound in bounds if bound is not None)

    @property
    def low_s(self) -> float:
        """All stages, if everything goes as well as it ever does."""
        return sum(stage.low_s for stage in self.stages)

    @property
    def high_s(self) -> float:
        """All stages, if nothing does."""
        return sum(stage.high_s for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """Whether the device has the memory; None where one of the two is not known."""
        if self.device is None or self.needed_bytes is None:
            return None
        return self.needed_bytes <= self.device.memory_bytes

    def report(self) -> Report:
        """Stages with bound and band, where they come from, the slowest ops, and the memory that is needed."""
        notes = tuple(deployment_notes(self._graphs))
        report = prediction_report(self._graphs, source_of(self._rates, self.execution), self._times)
        report = with_run(report, self.run)
        if isinstance(self._rates, Calibration):
            return replace(report, notes=(*notes, *((_AS_DENSE,) if notes else ()), *report.notes))
        report = replace(report, tables=(*report.tables, need_table(self._memory, self._rates)))
        report = with_serving_fit(report, self._fit)
        return replace(report, notes=(*notes, *report.notes))


def find_rates(
    device: str | Device | None = None,
    *,
    calibration: str | Path | Calibration | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.EAGER,
    weights: str | None = None,
    cache: str | None = None,
) -> Rates:
    """The device or the calibration that times come from, and not both. A wrong one is refused before any work.

    A calibration brings its own machine, and was measured launching op by op on dense weights: it takes nothing else.
    """
    if (device is None) == (calibration is None):
        raise UsageError(
            "A prediction needs --device or --calibration, and not both.",
            why="its times come from the figures of a device, or from measurements of one machine",
            fix="llm-perf-opt devices list shows the devices, llm-perf-opt devices calibrate measures this machine",
        )
    if device is not None:
        return find_device(device, devices_file) if isinstance(device, str) else device
    given = {
        "--devices": devices_file is not None,
        "--execution": execution != Execution.EAGER,
        "--weights": weights is not None,
        "--cache": cache is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        raise UsageError(
            f"A calibration has no use for {option}.",
            why="its times were measured on one machine, op by op, on weights that were not quantised",
            fix=f"leave {option} out, or give --device in place of --calibration",
        )
    assert calibration is not None
    return calibration if isinstance(calibration, Calibration) else read_calibration(Path(calibration))


def torch_device_of(rates: Rates) -> str | None:
    """The device that traced code should see; None: the tracer's own default."""
    return rates.kind if isinstance(rates, Calibration) else rates.torch_device


def prediction_answer(
    graphs: tuple[CallGraph, ...], rates: Rates, execution: str = Execution.EAGER
) -> PredictionAnswer:
    """The prediction of every stage of every phase."""
    device = rates if isinstance(rates, Device) else None
    fit = None if device is None else traced_fit(graphs, device)
    source, memory = source_of(rates, execution), run_memory(graphs)
    times = tuple(tuple(predict(graph, source)) for graph in graphs)
    return PredictionAnswer(
        model=graphs[0].model,
        machine=rates.name if isinstance(rates, Device) else rates.title,
        device=device,
        execution=execution,
        stages=tuple(_stage(graph.phase, stage) for graph, found in zip(graphs, times, strict=True) for stage in found),
        needed_bytes=memory.total_bytes,
        serving=None if fit is None else fit[1],
        _graphs=graphs,
        _rates=rates,
        _times=times,
        _memory=memory,
        _fit=fit,
    )


def prediction_of_run(
    trace: Trace, rates: Rates, execution: str = Execution.EAGER, *, decode_steps: int
) -> PredictionAnswer:
    """The prediction of a trace, and with it the run of so many decode steps."""
    answer = prediction_answer(trace.graphs, rates, execution)
    return replace(answer, run=predicted_run(trace, answer._times, source_of(rates, execution), decode_steps))


def _stage(phase: str, stage: StageTime) -> PredictedStage:
    return PredictedStage(
        phase=phase,
        name=stage.name,
        lower_bound_s=stage.lower_bound_s,
        low_s=stage.wall.low,
        high_s=stage.wall.high,
        expected_s=stage.wall.expected,
        launches=stage.launches,
        bound_by=None if stage.bound_by is None else str(stage.bound_by),
    )


def source_of(rates: Rates, execution: str) -> RateSource:
    """The rates as a prediction takes them."""
    return CalibratedRates(rates) if isinstance(rates, Calibration) else DataSheetRates(rates, Execution(execution))
