"""`llm-perf-opt graph`: fold a trace into a picture a person can read, and draw it in any format."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from llm_perf_opt.cli.model_options import CacheOption, TraceArgument, WeightsOption
from llm_perf_opt.cli.output import ForceFileOption, JsonOption, VerboseOption, asked_format, put
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import DRAWINGS
from llm_perf_opt.core.protocols import FitsOneScreen

PhaseOption = Annotated[
    str | None,
    typer.Option(help="Which phase of a run; the prefill if absent. A page holds all of them and begins with it."),
]
RankOption = Annotated[
    int | None, typer.Option(min=0, help="Which rank of a run that holds several; the first if absent.")
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help=f"One of: {', '.join(DRAWINGS.names())}. By default what --out ends in, or text."),
]
OutOption = Annotated[Path | None, typer.Option(help="File to write; without it the picture goes to stdout.")]
DepthOption = Annotated[int | None, typer.Option(min=0, help="Open exactly so many levels of boxes.")]
FocusOption = Annotated[str | None, typer.Option(help="Module path or label of a family to show alone.")]
MaxBoxesOption = Annotated[int, typer.Option(min=1, help="Open boxes while no more than this many show.")]
MetricOption = Annotated[
    Literal["flops", "bytes", "parameters", "activations", "calls"], typer.Option(help="What boxes are weighed by.")
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        metavar="TERM,...", help="Show these modules: families (linear, conv, attention, ...), classes, path patterns."
    ),
]
StageOption = Annotated[str | None, typer.Option(metavar="NAME,...", help="Show the modules of these stages.")]
MinShareOption = Annotated[
    str | None, typer.Option(metavar="PERCENT", help="Leave out what has less of the metric, such as 0.5%.")
]
UngroupedOption = Annotated[
    bool, typer.Option("--ungrouped", help="Fold nothing: every module a box, all open; dot draws the call graph.")
]


def graph(
    source: TraceArgument,
    phase: PhaseOption = None,
    rank: RankOption = None,
    format_name: FormatOption = None,
    out: OutOption = None,
    depth: DepthOption = None,
    focus: FocusOption = None,
    max_boxes: MaxBoxesOption = 40,
    metric: MetricOption = "flops",
    only: OnlyOption = None,
    stage: StageOption = None,
    min_share: MinShareOption = None,
    ungrouped: UngroupedOption = False,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    force: ForceFileOption = False,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Fold a trace into families of modules and draw it; needs no torch."""
    from llm_perf_opt.api.tracing import load_phase

    name = _format_of(format_name, out, json_wanted)
    drawing = DRAWINGS.get(name)(metric)
    if out is not None:
        free_file(out, force=force)
    traced = load_phase(source, phase, rank=rank, weights=weights, cache=cache, with_others=name == "html")
    answer = traced.graph(
        phase or ("prefill" if "prefill" in traced.phases else None),
        depth=depth,
        focus=focus,
        max_boxes=max_boxes,
        metric=metric,
        only=only,
        stage=stage,
        min_share=min_share,
        ungrouped=ungrouped,
    )
    picture: str | bytes = ""
    if isinstance(drawing, FitsOneScreen) and out is None and not verbose:
        picture = drawing.one_screen(answer.view)
    else:
        picture = answer.draw(name, metric)
    if out is not None:
        write_result(out, picture)
        _close(source, phase, rank, out, name)
    elif isinstance(picture, str):
        put(picture if picture.endswith("\n") else f"{picture}\n")
    else:
        raise UsageError(
            f"The format {name!r} needs a file.",
            why="it is not text, and stdout is for text",
            fix=f"add --out {source.name or 'graph'}{drawing.suffix}",
        )


def _format_of(format_name: str | None, out: Path | None, json_wanted: bool) -> str:
    if (name := asked_format(format_name, json_wanted)) is not None or out is None:
        return "text" if name is None else name
    from llm_perf_opt.api.graph import drawing_format_of

    return drawing_format_of(out)


def _close(source: Path, phase: str | None, rank: int | None, out: Path, name: str) -> None:
    """Say what was written and the next command."""
    say(f"Wrote {out}")
    of_phase = f" --phase {shlex.quote(phase)}" if phase else ""
    of_phase += "" if rank is None else f" --rank {rank}"
    other = "--format text" if name == "html" else f"--out {shlex.quote(str(out.with_suffix('.html')))}"
    say(f"Next: llm-perf-opt graph {shlex.quote(str(source))}{of_phase} {other}")
