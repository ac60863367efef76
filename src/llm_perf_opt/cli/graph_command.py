"""`llm-perf-opt graph`: draw a trace as a picture that a person can read, in any format."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llm_perf_opt.cli.model_options import CacheOption, SourceArgument, WeightsOption, trace_or_load
from llm_perf_opt.cli.output import ForceFileOption, JsonOption, VerboseOption, asked_format, put
from llm_perf_opt.cli.progress import say
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import DRAWINGS
from llm_perf_opt.core.protocols import FitsOneScreen

if TYPE_CHECKING:
    from llm_perf_opt.api.trace import Trace

PhaseOption = Annotated[
    str | None,
    typer.Option(help="Phase to draw. Default: the prefill. An HTML page has all phases and begins with this one."),
]
RankOption = Annotated[int | None, typer.Option(min=0, help="Rank to draw, of a run with several. Default: the first.")]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help=f"One of: {', '.join(DRAWINGS.names())}. Default: by the suffix of --out, or text."),
]
OutOption = Annotated[Path | None, typer.Option(help="File to write. Default: the picture goes to stdout.")]
DepthOption = Annotated[int | None, typer.Option(min=0, help="Open exactly this many levels of boxes.")]
FocusOption = Annotated[str | None, typer.Option(help="Show one module or family alone, by its path or label.")]
MaxBoxesOption = Annotated[int, typer.Option(min=1, help="Show at most this many boxes.")]
MetricOption = Annotated[
    Literal["flops", "bytes", "parameters", "activations", "calls"],
    typer.Option(help="Figure that boxes are ranked and sized by."),
]
OnlyOption = Annotated[
    str | None,
    typer.Option(
        metavar="TERM,...", help="Show these modules: families (linear, conv, attention, ...), classes, path patterns."
    ),
]
StageOption = Annotated[str | None, typer.Option(metavar="NAME,...", help="Show the modules of these stages.")]
MinShareOption = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="Leave out modules with a smaller share of the metric, such as 0.5%."),
]
UngroupedOption = Annotated[
    bool, typer.Option("--ungrouped", help="Draw every module as its own open box; dot draws the call graph.")
]
RuntimeLogOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the images, crop grids, layers and steps of the phase to this file."),
]


def graph(
    source: SourceArgument,
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
    runtime_log: RuntimeLogOption = None,
    weights: WeightsOption = None,
    cache: CacheOption = None,
    force: ForceFileOption = False,
    json_wanted: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Group the modules of MODEL_OR_TRACE into families and draw them; a saved trace needs no torch."""
    name = _format_of(format_name, out, json_wanted)
    drawing = DRAWINGS.get(name)(metric)
    for file in filter(None, (out, runtime_log)):
        free_file(file, force=force)
    traced = _named(source, phase, rank, weights=weights, cache=cache, with_others=name == "html")
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
    if runtime_log is not None:
        say(f"Wrote {answer.save_runtime_log(runtime_log, force=force)}")
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
            fix=f"add --out {Path(source).name or 'graph'}{drawing.suffix}",
        )


def _named(
    source: str, phase: str | None, rank: int | None, *, weights: str | None, cache: str | None, with_others: bool
) -> Trace:
    """The phase of a saved run, or a model by its name: traced with its defaults, unless it was traced before."""
    from llm_perf_opt.api.tracing import load_phase
    from llm_perf_opt.tracing.trace_files import is_trace

    path = Path(source)
    if is_trace(source) or (path.exists() and not (path / "config.json").exists()):
        return load_phase(path, phase, rank=rank, weights=weights, cache=cache, with_others=with_others)
    if rank is not None:
        raise UsageError(
            "A model that is named here has no ranks.",
            why="it is traced on one device",
            fix=f"llm-perf-opt trace {shlex.quote(source)} --tp 8 --out run/, then draw run/",
        )
    return trace_or_load(source, {}, weights=weights, cache=cache, trust_remote_code=False)


def _format_of(format_name: str | None, out: Path | None, json_wanted: bool) -> str:
    if (name := asked_format(format_name, json_wanted)) is not None or out is None:
        return "text" if name is None else name
    from llm_perf_opt.api.graph import drawing_format_of

    return drawing_format_of(out)


def _close(source: str, phase: str | None, rank: int | None, out: Path, name: str) -> None:
    """Say what was written and the next command."""
    say(f"Wrote {out}")
    of_phase = f" --phase {shlex.quote(phase)}" if phase else ""
    of_phase += "" if rank is None else f" --rank {rank}"
    other = "--format text" if name == "html" else f"--out {shlex.quote(str(out.with_suffix('.html')))}"
    say(f"Next: llm-perf-opt graph {shlex.quote(source)}{of_phase} {other}")
