"""`devices`: which are known, with every figure and its source, and measuring this machine; `catalogue`: models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, VerboseOption, choose_reporter, show
from llm_perf_opt.cli.progress import say

OutOption = Annotated[
    Path, typer.Option(metavar="FILE", help="JSON file to write; a TOML file for --devices is written next to it.")
]


def calibrate(
    out: OutOption = Path("calibration.json"),
    torch_device: Annotated[str, typer.Option(help="Device to measure: cpu or cuda.")] = "cpu",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Type of matmuls, attention and convolutions.")
    ] = "bfloat16",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads. Default: torch's own choice.")
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Try the smallest sizes only, to see that it runs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files.")] = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Measure how fast this machine is at each kind of work. Takes two to four minutes; run nothing else meanwhile."""
    from llm_perf_opt.api.calibration import calibrate as run_calibrate

    reporter = choose_reporter(format_name, json_wanted)
    answer = run_calibrate(torch_device=torch_device, dtype=dtype, threads=threads, smoke=smoke, out=out, force=force)
    show(answer.report(), reporter, verbose=verbose)
    for file in answer.files:
        say(f"Wrote {file}")
    if answer.device is None:
        say("Wrote no file for --devices: --smoke tries only the smallest sizes, which say nothing about peak rates.")
        say(f"Next: llm-perf-opt devices calibrate --out {out} --force")
    else:
        say(f"Next: llm-perf-opt devices show {answer.device.id} --devices {answer.files[1]}")


devices_app = typer.Typer(
    name="devices",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List and describe devices, measure this machine, and add your own.",
)
devices_app.command()(calibrate)
DevicesOption = Annotated[
    Path | None, typer.Option("--devices", metavar="FILE", help="TOML file with devices of your own.")
]


@devices_app.command("list")
def list_devices(
    devices: DevicesOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """List every known device with its main figures."""
    from llm_perf_opt.api.devices import devices as known_devices

    reporter = choose_reporter(format_name, json_wanted)
    show(known_devices(devices).report(), reporter, verbose=verbose)


@devices_app.command("show")
def show_device(
    device: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE", help="The device's id, or the name that its driver reports.", show_default=False
        ),
    ],
    devices: DevicesOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Print every figure of one device, the sources, and where they disagree."""
    from llm_perf_opt.api.devices import device as find_device

    reporter = choose_reporter(format_name, json_wanted)
    show(find_device(device, devices).report(), reporter, verbose=verbose)


@devices_app.command("cluster")
def show_cluster(
    cluster: Annotated[
        str,
        typer.Argument(
            metavar="CLUSTER", help="8x h100-sxm, 4x8 h100-sxm, 2x8 h100-sxm via roce-400.", show_default=False
        ),
    ],
    devices: DevicesOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Print the links of a cluster, and how long collectives between its ranks take."""
    from llm_perf_opt.api.devices import cluster as find_cluster

    reporter = choose_reporter(format_name, json_wanted)
    show(find_cluster(cluster, devices).report(), reporter, verbose=verbose)


@devices_app.command("template")
def print_template(
    device: Annotated[str, typer.Argument(metavar="[ID]", help="Id of the device to describe.")] = "my-device",
) -> None:
    """Print a TOML table to fill in, for --devices."""
    from llm_perf_opt.core.hardware import device_template

    sys.stdout.write(device_template(device))


SearchOption = Annotated[
    str | None,
    typer.Option("--search", metavar="WORDS", help="List only names that contain these words, such as qwen."),
]


def models(
    search: SearchOption = None,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """List the models known by name: models built into this package, and a catalogue of released models."""
    from llm_perf_opt.api.catalogue import known_models

    reporter = choose_reporter(format_name, json_wanted)
    show(known_models(search).report(), reporter, verbose=verbose)


def doctor(format_name: FormatOption = None, json_wanted: JsonOption = False, verbose: VerboseOption = False) -> None:
    """Check what is installed and what is missing."""
    from llm_perf_opt.api.catalogue import doctor as look_for_needs

    reporter = choose_reporter(format_name, json_wanted)
    installation = look_for_needs()
    show(installation.report(), reporter, verbose=verbose)
    if not installation.is_complete:
        raise typer.Exit(1)
