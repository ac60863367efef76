"""`llm-perf-opt predict`: how long each stage would take on a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DeviceOption,
    DevicesOption,
    RoutingOption,
    SourceArgument,
    TrustOption,
    WeightsOption,
    takes_workload,
    trace_or_load,
)
from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, model_prints_apart, show, tables_alone
from llm_perf_opt.cli.progress import few_lines_per_trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.work_limits import refuse_decode_steps
from llm_perf_opt.core.workload import Deployment

CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="In place of a device: a calibration, from llm-perf-opt devices calibrate."),
]
ExecutionOption = Annotated[
    Literal["eager", "fused"],
    typer.Option(help="Who launches kernels: PyTorch op by op, or an engine that fuses and captures them."),
]
WhatIfOption = Annotated[
    Literal["attention"] | None,
    typer.Option(help="In place of the prediction: eager, fused and flash attention side by side."),
]


@takes_workload(plans=True)
def predict(
    model: SourceArgument,
    workload: Mapping[str, Any],
    weights: WeightsOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    calibration: CalibrationOption = None,
    execution: ExecutionOption = "eager",
    what_if: WhatIfOption = None,
    routing: RoutingOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Predict how long MODEL_OR_TRACE takes on a device: a bound that nothing beats, and a band of what is likely."""
    from llm_perf_opt.api.prediction import find_rates, torch_device_of
    from llm_perf_opt.api.trace_files import is_trace

    reporter = choose_reporter(format_name, json_wanted)
    if what_if is not None and (calibration is not None or execution != "eager"):
        raise UsageError(
            "--what-if takes a device and eager execution.",
            why="a calibration has not measured every kind of attention, and an engine chooses its own",
            fix="leave --calibration and --execution out",
        )
    Deployment.make(weights=weights, cache=cache)  # a word that is no format is refused first
    torch_device = None
    if device or calibration or not is_trace(model):  # a saved trace may name its device
        rates = find_rates(
            device, calibration=calibration, devices_file=devices, execution=execution, weights=weights, cache=cache
        )
        torch_device = torch_device_of(rates)
    refuse_decode_steps(steps := workload.get("decode_steps", 1))
    has_run = what_if is None and steps > 1 and not is_trace(model)
    traced = trace_or_load(
        model,
        {**workload, "decode_steps": 1} if has_run else workload,
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=torch_device,
        trust_remote_code=trust_remote_code,
    )
    if what_if is not None:
        with model_prints_apart():
            compared = traced.what_if(what_if, device, devices_file=devices)
        show(compared.report(), reporter)
        return
    with model_prints_apart(), few_lines_per_trace():
        answer = traced.predict(
            device,
            calibration=calibration,
            devices_file=devices,
            execution=execution,
            decode_steps=steps if has_run else None,
        )
    report = answer.report()
    show(tables_alone(report, format_name, json_wanted), reporter)
