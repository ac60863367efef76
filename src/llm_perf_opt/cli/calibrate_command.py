"""`llm-perf-opt devices calibrate`: measure the machine at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_perf_opt.cli.output import FormatOption, JsonOption, choose_reporter, show
from llm_perf_opt.cli.talk import say

OutOption = Annotated[
    Path, typer.Option(metavar="FILE", help="JSON file to write; a TOML file for --devices is written beside it.")
]


def calibrate(
    out: OutOption = Path("calibration.json"),
    device: Annotated[str, typer.Option(help="cpu or cuda, as torch names it.")] = "cpu",
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Of products, attention and convolutions.")
    ] = "bfloat16",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of the CPU; torch's own choice if left out.")
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Try the smallest sizes only, to see that it runs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files.")] = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
) -> None:
    """Measure how fast this machine is at each kind of work: two to four minutes, best with nothing else running."""
    from llm_perf_opt.pipeline.calibrating import CalibrateRequest, run_calibrate

    reporter = choose_reporter(format_name, json_wanted)
    run = run_calibrate(
        CalibrateRequest(out=out, device=device, dtype=dtype, threads=threads, smoke=smoke, force=force)
    )
    show(run.report, reporter)
    for file in run.files:
        say(f"Wrote {file}")
    if run.device_id is None:
        say("Wrote no file for --devices: the smallest sizes tell no rates of this machine.")
        say(f"Next: llm-perf-opt devices calibrate --out {out} --force")
    else:
        say(f"Next: llm-perf-opt devices show {run.device_id} --devices {run.files[1]}")
