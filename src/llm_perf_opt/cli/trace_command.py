"""`llm-perf-opt trace`: run a model weightlessly, write its call graph, print the per-stage table."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from llm_perf_opt.cli.model_options import (
    CacheOption,
    DeviceOption,
    DevicesOption,
    ModelArgument,
    RoutingOption,
    TorchDeviceOption,
    TrustOption,
    WeightsOption,
    takes_workload,
)
from llm_perf_opt.cli.output import ForceOption, FormatOption, JsonOption, choose_reporter, model_prints_apart, show
from llm_perf_opt.cli.progress import log_debug_too, say
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import TRACERS

TracerOption = Annotated[str, typer.Option(help=f"How to look: {', '.join(TRACERS.names())}.")]
LoadWeightsOption = Annotated[
    str | None,
    typer.Option(metavar="random|none|DIR", help="Weights for a real run. Default: random; weightless has none."),
]
PictureOption = Annotated[
    str | None, typer.Option(metavar="MODULE=FILE", help="TorchLens's own picture of a module: svg, pdf or png.")
]
OutOption = Annotated[Path | None, typer.Option(help="Folder for the trace, one file per phase.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Exit 1 if any op has no price.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Say more, also what the model's own code prints.")]


@takes_workload()
def trace(
    model: ModelArgument,
    workload: Mapping[str, Any],
    tracer: TracerOption = "weightless",
    load_weights: LoadWeightsOption = None,
    device: DeviceOption = None,
    devices: DevicesOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    torchlens_picture: PictureOption = None,
    routing: RoutingOption = None,
    torch_device: TorchDeviceOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    format_name: FormatOption = None,
    json_wanted: JsonOption = False,
    strict: StrictOption = False,
    trust_remote_code: TrustOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run MODEL_OR_DIR, by default without weights, and print what each stage costs."""
    from llm_perf_opt.api.tracing import trace as run_trace

    if verbose:
        log_debug_too()
    reporter = choose_reporter(format_name, json_wanted)
    picture = _picture(torchlens_picture)
    with model_prints_apart():
        traced = run_trace(
            model,
            tracer=tracer,
            load_weights=load_weights,
            device=device,
            devices_file=devices,
            weights=weights,
            cache=cache,
            picture=picture,
            routing=routing,
            torch_device=torch_device,
            out=out,
            force=force,
            trust_remote_code=trust_remote_code,
            **workload,
        )
    stages = traced.stages()
    show(stages.report(), reporter)
    _close(traced.files, out)
    if strict and stages.unpriced_ops != 0:
        raise _unpriced_error(stages.unpriced_ops)


def _picture(text: str | None) -> tuple[str, Path] | None:
    if text is None:
        return None
    module, _, file = text.rpartition("=")
    if Path(file).suffix not in (".svg", ".pdf", ".png") or not module:
        raise typer.BadParameter(
            f"{text!r} is not MODULE=FILE, like model.layers.0=layer.svg", param_hint="--torchlens-picture"
        )
    return module, Path(file)


def _close(files: tuple[Path, ...], out: Path | None) -> None:
    """Say what was written and the next command."""
    for file in files:
        say(f"Wrote {file}")
    if out is None:
        say("Nothing written: add --out DIR to keep the trace.")
    else:
        say(f"Next: llm-perf-opt graph {shlex.quote(str(out))} --out graph.html")


def _unpriced_error(unpriced_ops: int | None) -> PerfOptError:
    if unpriced_ops is None:
        return PerfOptError(
            "The costs are not known.",
            why="--strict was given, and the tracer sees no ops",
            fix="trace with --tracer weightless, and compare the two",
        )
    return PerfOptError(
        f"{unpriced_ops:,} ops have no price and are not in the totals.",
        why="--strict was given",
        fix="see the warnings above for their names; without --strict the table stands with its holes listed",
    )
