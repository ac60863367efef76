"""One phase of a trace, folded into a picture, in the format that a file's suffix names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.analyses.grouping import MAX_BOXES, group
from llm_perf_opt.analyses.run_description import deployment_notes
from llm_perf_opt.api.deployed_traces import redeployed
from llm_perf_opt.api.trace_files import TRACE_SUFFIX, read_traces, trace_files
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import DRAWINGS, REPORTERS, Deployment
from llm_perf_opt.core.report import GraphView


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRequest:
    """Everything `graph` can be asked for. Without `phase` it is the prefill, or the first phase there is."""

    source: Path = Path()
    deployment: Deployment = field(default_factory=Deployment)
    phase: str | None = None
    depth: int | None = None
    focus: str | None = None
    max_boxes: int = MAX_BOXES
    metric: str = "flops"


def graph_view(request: GraphRequest) -> GraphView:
    """One phase of a trace made earlier, folded into families. Needs no torch."""
    graph = _chosen_phase(request)
    if request.deployment != Deployment():
        graph = _stored_as(graph, request)
    return view_of(graph, request)


def _stored_as(graph: CallGraph, request: GraphRequest) -> CallGraph:
    """The phase in the formats that were asked for; a cache is found in the decode, so all phases are read for it."""
    phases = (graph,) if request.deployment.cache is None else read_traces([request.source])
    found = next(place for place, phase in enumerate(phases) if phase.phase == graph.phase)
    return redeployed(phases, request.deployment)[found]


def view_of(graph: CallGraph, request: GraphRequest) -> GraphView:
    """The same for a trace at hand; where it lies and its phase are decided already."""
    view = group(
        graph,
        depth=request.depth,
        focus=request.focus,
        max_boxes=request.max_boxes,
        metric=request.metric,
    )
    return replace(view, caption=(*view.caption, *(note.text for note in deployment_notes([graph]))))


def _chosen_phase(request: GraphRequest) -> CallGraph:
    """A run names its files after their phases, so only the wanted one is read; a file alone says its phase itself."""
    files = {file.name.removesuffix(TRACE_SUFFIX): file for file in trace_files([request.source])}
    if len(files) == 1:
        graph = read_callgraph(*files.values())
        if request.phase in (None, graph.phase):
            return graph
        files = {graph.phase: request.source}
    wanted = request.phase or ("prefill" if "prefill" in files else next(iter(files)))
    if wanted not in files:
        raise UsageError(
            f"There is no phase {wanted!r} in {request.source}.", why=f"it holds: {', '.join(files)}", fix="choose one"
        )
    return read_callgraph(files[wanted])


def report_format_of(path: Path) -> str:
    """The report format whose files end like this."""
    known = {REPORTERS.get(name).suffix: name for name in REPORTERS.names()}
    if path.suffix not in known:
        raise UsageError(
            f"No format ends in {path.suffix!r}.",
            why=f"the suffix is the format, one of: {', '.join(known)}",
            fix="name the file so, or give --format",
        )
    return known[path.suffix]


def drawing_format_of(path: Path) -> str:
    """The drawing whose files end like this; the longer of two endings wins: `.speedscope.json` over `.json`."""
    suffixes = {name: DRAWINGS.get(name).suffix for name in DRAWINGS.names()}
    named = [name for name, suffix in suffixes.items() if path.name.endswith(suffix)]
    if named:
        return max(named, key=lambda name: len(suffixes[name]))
    alike = [name for name, suffix in suffixes.items() if path.suffix and suffix.endswith(path.suffix)]
    if not alike:
        raise UsageError(
            f"No format is known for the ending of {path}.",
            why="without --format it tells how to draw",
            fix=f"add --format, one of: {', '.join(DRAWINGS.names())}",
        )
    return alike[0]
