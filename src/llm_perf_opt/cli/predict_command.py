"""`llm-perf-opt predict`: how long each stage would take on a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DevicesOption,
    ExecutionOption,
    RatesOption,
    RoutingOption,
    SeveralOption,
    SourceArgument,
    TrustOption,
    WeightsOption,
    read_prices,
    takes_workload,
    trace_or_load,
)
from llm_perf_opt.cli.output import FormatOption, JsonOption, VerboseOption, choose_reporter, model_prints_apart, show
from llm_perf_opt.cli.progress import few_lines_per_trace
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.work_limits import refuse_decode_steps
from llm_perf_opt.core.workload import Deployment

if TYPE_CHECKING:
    from llm_perf_opt.api.trace import Trace
    from llm_perf_opt.core.report import Report

CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="In place of a device: a calibration, from llm-perf-opt devices calibrate."),
]
EngineOption = Annotated[
    Literal["vllm", "sglang", "trtllm"] | None,
    typer.Option(help="Whose measured kernels run, with --execution fused. Default: vllm."),
]
MeasuredOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Correct the times by what was measured: a line such as 'ttft=0.5s tpot=20ms batch=16', a file of that, a "
        "result of vllm bench serve, genai-perf, AIPerf or guidellm, a GPU recording, the folder of a profile. May be "
        "repeated.",
    ),
]
PriceOption = Annotated[
    list[str] | None,
    typer.Option(metavar="DEVICE=PRICE", help="Of an hour of a device: l4=0.8. With several; may be repeated."),
]
WhatIfOption = Annotated[
    Literal["attention"] | None,
    typer.Option(help="In place of the prediction: eager, fused and flash attention side by side."),
]


def _refuse_with_what_if(*, has_machine: bool, has_tables: bool, is_measured: bool) -> None:
    """What a comparison of kinds of attention has no use for."""
    if has_machine:
        raise UsageError(
            "--what-if takes a device and eager execution.",
            why="a calibration has not measured every kind of attention, and an engine chooses its own",
            fix="leave --calibration and --execution out",
        )
    if has_tables:
        raise UsageError(
            "--what-if compares kinds of attention by the data sheet.",
            why="tables hold one measured attention for a shape, not one of each kind",
            fix="leave --rates and --engine out",
        )
    if is_measured:
        raise UsageError(
            "--what-if takes no --measured.",
            why="one measurement is of one kind of attention, and corrects no other",
            fix="leave one of the two out",
        )


@takes_workload(plans=True)
def predict(
    model: SourceArgument,
    workload: Mapping[str, Any],
    weights: WeightsOption = None,
    cache: CacheOption = None,
    device: SeveralOption = None,
    devices: DevicesOption = None,
    calibration: CalibrationOption = None,
    execution: ExecutionOption = "eager",
    rates: RatesOption = None,
    engine: EngineOption = None,
    measured: MeasuredOption = None,
    what_if: WhatIfOption = None,
    price: PriceOption = None,
    routing: RoutingOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Predict how long MODEL_OR_TRACE takes on a device: a bound that nothing beats, and a band of what is likely."""
    from llm_perf_opt.core.hardware.links import is_several
    from llm_perf_opt.measurements.measured_points import read_given
    from llm_perf_opt.tracing.trace_files import is_trace

    reporter = choose_reporter(format_name, json_wanted)
    _refuse_for_several(is_several(device), price, calibration=calibration, measured=measured, what_if=what_if)
    if what_if is not None:
        _refuse_with_what_if(
            has_machine=calibration is not None or execution != "eager",
            has_tables=rates == "tables" or engine is not None,
            is_measured=bool(measured),
        )
    found = None if not measured else read_given(measured)  # a file that cannot be read is refused first
    Deployment.make(weights=weights, cache=cache)  # a word that is no format is refused first
    machine: dict[str, Any] = {"calibration": calibration, "devices_file": devices, "execution": execution}
    machine |= {"rates": rates, "engine": engine}
    torch_device = None
    if device or calibration or not is_trace(model):  # a saved trace may name its device
        torch_device = _torch_device(device, weights=weights, cache=cache, **machine)
    refuse_decode_steps(steps := workload.get("decode_steps", 1))
    has_run = what_if is None and steps > 1 and not is_trace(model)
    traced = trace_or_load(
        model,
        {**workload, "decode_steps": 1} if has_run else workload,
        weights=weights,
        cache=cache,
        routing=routing,
        torch_device=torch_device,
        copies_key_heads=execution == "fused",
        trust_remote_code=trust_remote_code,
    )
    machine |= {"decode_steps": steps if has_run else None, "measured": found}
    with model_prints_apart(), few_lines_per_trace():
        if what_if is not None:
            report = traced.what_if(what_if, device, devices_file=devices).report()
        else:
            report = _predicted(traced, device, price, machine)
    show(report, reporter, verbose=verbose)


def _torch_device(device: str | None, **machine: Any) -> str | None:
    """What the traced code sees; of several devices that of the first. A wrong one is refused before any work."""
    from llm_perf_opt.core.hardware.links import find_devices, is_several
    from llm_perf_opt.timing.rate_sources import find_machine, torch_device_of

    first = find_devices(device, machine["devices_file"])[0] if device is not None and is_several(device) else device
    return torch_device_of(find_machine(first, **machine))


def _predicted(traced: Trace, device: str | None, price: list[str] | None, machine: Mapping[str, Any]) -> Report:
    """One device, or several side by side."""
    from llm_perf_opt.core.hardware.links import is_several

    if device is None or not is_several(device):
        return traced.predict(device, **machine).report()
    prices = read_prices(",".join(price)) if price else None
    asked = {name: value for name, value in machine.items() if name not in ("calibration", "measured")}
    return traced.predict_each(device, **asked, prices=prices).report()


def _refuse_for_several(several: bool, price: list[str] | None, **others: object) -> None:
    """What is of one device, where several are named; and prices, where one is."""
    given = next((name for name, value in others.items() if several and value), None)
    if given is not None:
        option = f"--{given.replace('_', '-')}"
        raise UsageError(
            f"{option} is of one device.", why="--device names several", fix=f"name one, or leave {option} out"
        )
    if price and not several:
        raise UsageError(
            "--price compares devices.", why="--device names one", fix="name several: --device l4,h100-sxm, or all"
        )
