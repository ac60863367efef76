"""`llm-perf-opt devices`: which devices are known, with every figure and its source, and how to add one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.calibrate_command import calibrate
from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show

devices_app = typer.Typer(
    name="devices",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and describe devices, measure the one at hand, and add your own.",
)
devices_app.command()(calibrate)
DevicesOption = Annotated[
    Path | None, typer.Option("--devices", metavar="FILE", help="TOML file with devices of your own.")
]


@devices_app.command("list")
def list_devices(
    devices: DevicesOption = None, format_name: FormatOption = None, json_wanted: JsonOption = False
) -> None:
    """List every known device with its main figures."""
    from llm_perf_opt.pipeline.describing_devices import device_list

    reporter = choose_reporter(format_name, json_wanted)
    show(device_list(devices), reporter)


@devices_app.command("show")
def show_device(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="Id or reported name.", show_default=False)],
    devices: DevicesOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
) -> None:
    """Print every figure of one device, its sources, and what they disagree about."""
    from llm_perf_opt.pipeline.describing_devices import device_report

    reporter = choose_reporter(format_name, json_wanted)
    show(device_report(device, devices), reporter)


@devices_app.command("template")
def print_template(
    device: Annotated[str, typer.Argument(metavar="[ID]", help="Id of the device to describe.")] = "my-device",
) -> None:
    """Print a TOML table to fill in, for --devices."""
    from llm_perf_opt.hardware import device_template

    sys.stdout.write(device_template(device))
