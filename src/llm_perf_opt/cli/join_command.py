"""`llm-perf-opt join`: a recording that someone made on their GPU, laid on the traced ops."""

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
        help="A Chrome trace of torch.profiler (.json, .json.gz), or of Nsight Systems its SQLite export or the "
        "cuda_gpu_trace table as CSV or JSON.",
        show_default=False,
    ),
]
PhaseOption = Annotated[str | None, typer.Option(help="Which phase of the run was recorded; the prefill if absent.")]
StepOption = Annotated[
    str | None,
    typer.Option(metavar="N|N-M", help="Which ProfilerStep. Default: the last; all kernels if none is marked."),
]
DeviceOption = Annotated[
    str | None, typer.Option(metavar="ID", help="Whose peaks count. Default: the device that the recording names.")
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
    """Lay the kernels of a GPU recording on the ops of a trace: time, FLOP/s, MFU and MBU by stage, module and op.

    The recording may come from any machine, with or without shapes, also from a CUDA graph. Needs no torch.
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
        found = "ID" if answer.device is None else answer.device.id
        say(f"Next: llm-perf-opt trace {shlex.quote(str(source))} --device {found}")
    if strict and not answer.is_complete:
        raise PerfOptError(
            f"The recording does not fit the trace: {format_ratio(answer.attributed)} of its time is attributed.",
            why="--strict wants 95 % of the time, 90 % of the FLOPs, and no more than 5 % of the work faster than the "
            "device allows; the notes say which of them fails",
            fix="trace the workload that was recorded: the same batch, lengths, attention and library version",
        )
