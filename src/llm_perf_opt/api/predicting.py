"""How fast a run could be on a device that need not be at hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.analyses.calibrated import calibrated_report
from llm_perf_opt.analyses.memory import need_table, run_memory
from llm_perf_opt.analyses.prediction import Execution, prediction_report
from llm_perf_opt.analyses.run_description import deployment_notes
from llm_perf_opt.analyses.serving import with_serving_fit
from llm_perf_opt.api.deployed_traces import redeployed
from llm_perf_opt.api.trace_files import is_trace, read_whole_traces, refuse_wishes
from llm_perf_opt.api.tracing import TraceRequest, find_adapter, trace_on_ghosts
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.calibration import read_calibration
from llm_perf_opt.core.protocols import Deployment, Workload
from llm_perf_opt.core.report import Level, Note, Report

_AS_DENSE = Note(
    "The calibration timed products whose weights are not quantised: other formats are timed as if they were those.",
    Level.WARNING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest:
    """Everything `predict` can be asked for. `model` may be a trace made earlier, which brings its own workload.

    The times come from figures of a device or from a calibration, never from both.
    """

    model: str
    device: str | None = None
    calibration_file: Path | None = None
    workload: Workload = field(default_factory=Workload)
    deployment: Deployment = field(default_factory=Deployment)
    devices_file: Path | None = None
    execution: str = "eager"
    routing: str | None = None
    trust_remote_code: bool = False


def run_predict(request: PredictRequest) -> Report:
    """The prediction of every stage, and whether the run fits; a wrong device is refused before anything is traced."""
    if request.calibration_file is not None and request.device is None:
        _refuse_device_words(request)
        calibration = read_calibration(request.calibration_file)
        graphs = _graphs(request, calibration.kind)
        return _with_deployment(calibrated_report(graphs, calibration), graphs, _AS_DENSE)
    if request.device is None or request.calibration_file is not None:
        raise UsageError(
            "A prediction needs --device or --calibration, and not both.",
            why="its times come from the figures of a device, or from measurements of one machine",
            fix="llm-perf-opt devices list shows the devices, llm-perf-opt devices calibrate measures this machine",
        )
    device = find_device(request.device, request.devices_file)
    graphs = _graphs(request)
    report = prediction_report(graphs, device, Execution(request.execution))
    with_need = replace(report, tables=(*report.tables, need_table(run_memory(graphs), device)))
    return _with_deployment(with_serving_fit(with_need, graphs, device), graphs)


def _with_deployment(report: Report, graphs: tuple[CallGraph, ...], *if_stored_otherwise: Note) -> Report:
    told = tuple(deployment_notes(graphs))
    return replace(report, notes=(*told, *(if_stored_otherwise if told else ()), *report.notes))


def _refuse_device_words(request: PredictRequest) -> None:
    """A calibration brings its own machine, and was measured launching op by op on dense weights."""
    ignored = [
        ("--devices", request.devices_file is not None),
        ("--execution", request.execution != Execution.EAGER),
        ("--weights", request.deployment.weights is not None),
        ("--cache", request.deployment.cache is not None),
    ]
    for option, is_given in ignored:
        if is_given:
            raise UsageError(
                f"A calibration has no use for {option}.",
                why="its times were measured on one machine, op by op, on weights that were not quantised",
                fix=f"leave {option} out, or give --device in place of --calibration",
            )


def _graphs(request: PredictRequest, device_kind: str | None = None) -> tuple[CallGraph, ...]:
    if is_trace(request.model):
        refuse_wishes(request.workload, routing=request.routing)
        return redeployed(read_whole_traces([Path(request.model)]), request.deployment)
    adapter = find_adapter(request.model, request.trust_remote_code)
    return trace_on_ghosts(
        adapter,
        TraceRequest(
            model=request.model,
            workload=request.workload,
            deployment=request.deployment,
            routing=request.routing,
            device=device_kind,
        ),
    )
