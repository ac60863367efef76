"""`llm-perf-opt export`: static graphs of parts of a model, and a reason for every part that fails."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from llm_perf_opt.cli.model_options import ModelArgument, TrustOption, takes_workload
from llm_perf_opt.cli.output import (
    ForceOption,
    FormatOption,
    JsonOption,
    StrictOption,
    VerboseOption,
    choose_reporter,
    model_prints_apart,
    show,
)
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.export_outcome import CHECKS_BY_NAME, COMPILE_MODES, ExportOptions
from llm_perf_opt.core.workload import Workload

_DEFAULTS = ExportOptions()

PartOption = Annotated[
    list[str] | None,
    typer.Option(
        "--part",
        help="Part to export: a declared part or the path of any module. Repeatable. Default: all declared parts.",
    ),
]
CompileOption = Annotated[
    list[str] | None,
    typer.Option("--compile", metavar="PART", help="Also compile this part and time it. Repeatable."),
]
PhaseOption = Annotated[Literal["prefill", "decode"], typer.Option(help="Phase in which a module path is called.")]
CheckOption = Annotated[
    list[str] | None,
    typer.Option("--check", help=f"Check to run: {', '.join(CHECKS_BY_NAME)}. Repeatable. Default: all of them."),
]
ModeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--compile-mode", help=f"Mode for --compile: {', '.join(COMPILE_MODES)}. Repeatable. Default: default."
    ),
]
LoadWeightsOption = Annotated[
    str | None,
    typer.Option(
        "--load-weights",
        "--weights",
        metavar="random|none|DIR",
        help="Weights to store in .pt2 and .onnx: random, or from a folder. Default: none.",
    ),
]
WeightsOption = Annotated[int, typer.Option(min=0, help="Largest weights of one part, in MiB.")]
RunsOption = Annotated[int, typer.Option(min=1, help="Number of timed runs of each kind, for --compile.")]
OperatorsOption = Annotated[bool, typer.Option("--operators", help="Print the operators of each graph as well.")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for .pt2, .onnx, listings and the matrix.")]


@takes_workload(dtype="float32")
def export(
    model: ModelArgument,
    workload: Mapping[str, Any],
    part: PartOption = None,
    phase: PhaseOption = "prefill",
    check: CheckOption = None,
    compile_parts: CompileOption = None,
    compile_modes: ModeOption = None,
    compile_runs: RunsOption = _DEFAULTS.compile_runs,
    load_weights: LoadWeightsOption = None,
    max_weights: WeightsOption = _DEFAULTS.max_weight_bytes >> 20,
    operators: OperatorsOption = False,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
) -> None:
    """Export parts of MODEL_OR_DIR as static graphs, by default without weights, and say why other parts fail."""
    from llm_perf_opt.api.export import export as run_export

    reporter = choose_reporter(format_name, json_wanted)
    with model_prints_apart():
        answer = run_export(
            model,
            *(part or ()),
            phase=phase,
            checks=check,
            compile_parts=compile_parts or (),
            compile_modes=compile_modes or _DEFAULTS.compile_modes,
            compile_runs=compile_runs,
            load_weights=load_weights,
            max_weight_bytes=max_weights << 20,
            out=out,
            force=force,
            trust_remote_code=trust_remote_code,
            **{"dtype": Workload().dtype, **workload},  # a workload leaves out what is its own default
        )
    report = answer.report()
    show(report if operators else replace(report, chapters=()), reporter, verbose=verbose or operators)
    _close(model, answer.files, out)
    if strict:
        _refuse_holes(answer.unpriced, report.title)
        _refuse_differences(answer.unexplained)


def _close(model: str, files: tuple[Path, ...], out: Path | None) -> None:
    """Say what was written and the next command."""
    if out is None:
        say("Nothing written: add --out DIR to keep graphs and matrix.")
        return
    for file in files:
        say(f"Wrote {file}")
    say(f"Next: llm-perf-opt cost {shlex.quote(model)} --sources counted,exported")


def _refuse_holes(unpriced: Sequence[str], title: str) -> None:
    if unpriced:
        raise PerfOptError(
            f"{title}: {len(unpriced)} operators have no price and are not in the totals.",
            why="--strict was given",
            fix="see the warnings above for their names; without --strict the table stands with its holes listed",
        )


def _refuse_differences(parts: Sequence[str]) -> None:
    if parts:
        raise PerfOptError(
            f"The FLOPs of {', '.join(parts)} differ between sources for no known reason.",
            why="--strict was given",
            fix="see the table of FLOPs above, and report the difference",
        )
