"""`llm-perf-opt join`: a recording from any GPU, matched with the traced ops."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from llm_perf_opt.cli.model_options import DevicesOption, TraceArgument
from llm_perf_opt.cli.output import (
    ForceFileOption,
    FormatOption,
    JsonOption,
    ReportFileOption,
    VerboseOption,
    choose_reporter,
    show,
)
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.units import format_ratio

RecordingArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RECORDING",
        help="A Chrome trace of torch.profiler (.json, .json.gz), or from Nsight Systems the SQLite export or the "
        "cuda_gpu_trace table as CSV or JSON.",
        show_default=False,
    ),
]
PhaseOption = Annotated[str | None, typer.Option(help="Phase that was recorded. Default: the prefill.")]
StepOption = Annotated[
    str | None,
    typer.Option(metavar="N|N-M", help="ProfilerStep to read. Default: the last; all kernels if none is marked."),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="MFU and MBU refer to its peaks. Default: the device that the recording names."),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Exit 1 if less than 95 % of the time is attributed, or another run was recorded."),
]


def join(
    source: TraceArgument,
    recording: RecordingArgument,
    phase: PhaseOption = None,
    step: StepOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    out: ReportFileOption = None,
    force: ForceFileOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    strict: StrictOption = False,
) -> None:
    """Match the kernels of a GPU recording with the ops of a trace: time, FLOP/s, MFU, MBU by stage, module and op.

    The recording may come from any machine, with or without shapes, also from a CUDA graph. No torch is needed.
    """
    from llm_perf_opt.api.tracing import load_phase

    reporter = choose_reporter(format_name, json_wanted, out)
    if out is not None:
        free_file(out, force=force)
    answer = load_phase(source, phase).join(recording, step=step, device=device, devices_file=devices)
    if out is None:
        show(answer.report(), reporter, verbose=verbose)
    else:
        write_result(out, reporter.render(answer.report()))
        say(f"Wrote {out}")
        device_id = "ID" if answer.device is None else answer.device.id
        say(f"Next: llm-perf-opt trace {shlex.quote(str(source))} --device {device_id}")
    if strict and not answer.is_complete:
        raise PerfOptError(
            f"The recording does not match the trace: {format_ratio(answer.attributed)} of its time is attributed.",
            why="--strict needs 95 % of the time, 90 % of the FLOPs, and no more than 5 % of the work faster than the "
            "device allows, which needs a device: the notes say which of these fails",
            fix="trace the workload that was recorded: the same batch, lengths, attention and library version",
        )
