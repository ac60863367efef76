"""`llm-perf-opt predict`: how long each stage would take on a device that need not be at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    RoutingOption,
    SourceArgument,
    TrustOption,
    WeightsOption,
    deployment_of,
    takes_workload,
)
from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, model_prints_apart, show
from llm_perf_opt.core.protocols import Workload

DeviceOption = Annotated[
    str | None, typer.Option(help="Id or reported name of a device: llm-perf-opt devices list.", show_default=False)
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="In place of a device: a calibration, from llm-perf-opt devices calibrate."),
]
DevicesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="TOML file with devices of your own: llm-perf-opt devices template.")
]
ExecutionOption = Annotated[
    Literal["eager", "fused"],
    typer.Option(help="Who launches kernels: PyTorch op by op, or an engine that fuses and captures them."),
]


@takes_workload()
def predict(
    model: SourceArgument,
    workload: Workload,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    calibration: CalibrationOption = None,
    execution: ExecutionOption = "eager",
    routing: RoutingOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Predict how long MODEL_OR_TRACE takes on a device: a bound that nothing beats, and a band of what is likely."""
    from llm_perf_opt.api.predicting import PredictRequest, run_predict

    reporter = choose_reporter(format_name, json_wanted)
    request = PredictRequest(
        model=model,
        device=device,
        calibration_file=calibration,
        workload=workload,
        deployment=deployment_of(weights, cache),
        devices_file=devices,
        execution=execution,
        routing=routing,
        trust_remote_code=trust_remote_code,
    )
    with model_prints_apart():
        report = run_predict(request)
    is_short = not json_wanted and format_name in (None, "text")  # a terminal gets the tables
    show(replace(report, charts=()) if is_short else report, reporter)
