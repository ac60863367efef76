"""`llm-perf-opt profile`: run a model for real, time its stages, and say how close it came to the device."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llm_perf_opt.cli.model_options import takes_limits
from llm_perf_opt.cli.output import (
    FormatOption,
    JsonOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    put,
    show,
)
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plain_text import visible_lines

if TYPE_CHECKING:
    from llm_perf_opt.api.profile import ProfileAnswer
    from llm_perf_opt.cli.profile_config import ConfiguredRun
    from llm_perf_opt.measurements.profile.run_folder import Sweep

_OVERRIDES_HELP = "Model and settings, such as deepseek-ocr-tiny workload.image=page.png run.repeats=5."
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL] KEY=VALUE", help=_OVERRIDES_HELP, show_default=False)
]
MultirunOption = Annotated[
    bool, typer.Option("--multirun", "-m", help="Run every combination of the values in lists: a=1,2.")
]
ShowOption = Annotated[bool, typer.Option("--show-config", help="Print the configuration as YAML and run nothing.")]
ImageOption = Annotated[
    str | None, typer.Option(metavar="FILE|WxH", help="Page to run; short for workload.image=.", show_default=False)
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Device to run on, by its id in `devices`; a GPU needs CUDA or ROCm."),
]
JoinOption = Annotated[
    bool,
    typer.Option(
        "--join", help="Match the profile with the traced ops and a prediction; uses nsys and ncu if installed."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Empty a run.folder that has another run in it.")]


@takes_limits
def profile(
    overrides: OverridesArgument = None,
    image: ImageOption = None,
    device: DeviceOption = None,
    join: JoinOption = False,
    multirun: MultirunOption = False,
    show_config: ShowOption = False,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a model for real, time every stage, and compare the times with the device's peaks."""
    from llm_perf_opt.cli import profile_config
    from llm_perf_opt.measurements.profile.run_folder import read_sweep

    reporter = choose_reporter(format_name, json_wanted)
    words = [*(overrides or ()), *_as_overrides(image, device, join)]
    if show_config:
        put(visible_lines(profile_config.show_config(words)))
        if not any(word.startswith(f"{profile_config.FOLDER_KEY}=") for word in words):
            say(f"Each run makes a new folder named by date and time; {profile_config.FOLDER_KEY}=DIR sets another.")
        return
    if multirun:
        folder, runs = profile_config.sweep_configured(words, partial(_run, force=force))
        sweep = read_sweep(folder, runs)
        show(sweep.report, reporter, verbose=verbose)
        _close_sweep(folder, sweep)
        return
    done: list[ProfileAnswer] = []
    profile_config.run_configured(words, lambda run: done.append(_run(run, force=force)))
    show(done[0].report(), reporter, verbose=verbose)
    _close(done[0])


def _as_overrides(image: str | None, device: str | None, join: bool) -> list[str]:
    """The options in the words of the configuration."""
    from llm_perf_opt.cli.profile_config import quoted
    from llm_perf_opt.core.hardware import find_device

    words = [] if image is None else [f"workload.image={quoted(image)}"]
    if device is not None:
        words += [f"device.name={quoted(device)}", f"device.torch={find_device(device).torch_device or 'cuda'}"]
    return [*words, *(("profiler.join=true", "profiler.nsight=installed") if join else ())]


def _run(run: ConfiguredRun, *, force: bool) -> ProfileAnswer:
    from llm_perf_opt.api.profile import run_profile
    from llm_perf_opt.cli.progress import progress_bar
    from llm_perf_opt.measurements.profile.profiled_model import open_model

    with progress_bar() as progress, model_prints_apart():
        model = open_model(run.request.model, run.request.device.torch)
        return run_profile(run.request, model, run.folder, run.config_text, force=force, progress=progress)


def _close(run: ProfileAnswer) -> None:
    for file in run.files:
        say(f"Wrote {file}")
    page = next(file for file in run.files if file.suffix == ".html")
    say(f"Next: open {shlex.quote(str(page))}")
    if run.failures:
        raise PerfOptError(
            f"{' and '.join(run.failures)} failed; the measured times are valid.",
            why="; ".join(run.failures.values()),
            fix="fix the cause and run the same command again: finished pages are not measured again",
        )


def _close_sweep(folder: Path, sweep: Sweep) -> None:
    finished = len(sweep.runs) - len(sweep.failures)
    say(f"Wrote {finished} runs to {folder}, each with report.html and metrics.json")
    if sweep.failures:
        from llm_perf_opt.measurements.profile.run_folder import FAILURE_FILE

        raise PerfOptError(
            f"{len(sweep.failures)} of {len(sweep.runs)} runs failed.",
            why=f"the first of them: {sweep.failures[0]}",
            fix=f"see {FAILURE_FILE} in their folders; the same command with run.folder={shlex.quote(str(folder))} "
            "measures only the unfinished runs",
        )
