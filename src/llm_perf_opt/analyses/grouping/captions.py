"""The lines under a picture: what it shows, what was checked, and every reservation about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from llm_perf_opt.analyses.grouping.boxes import are_uses_in_series
from llm_perf_opt.analyses.grouping.call_tree import CallTree, ParameterHomes
from llm_perf_opt.analyses.grouping.conservation import is_whole, outside_figures
from llm_perf_opt.analyses.grouping.data_flow import DataFlow, Knowledge
from llm_perf_opt.analyses.grouping.groups import Group
from llm_perf_opt.analyses.run_description import run_notes, workload_note
from llm_perf_opt.core.callgraph.aggregates import split_edge
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.graph_view import Box, Figures, GraphView
from llm_perf_opt.core.module_selection import recorded_only
from llm_perf_opt.core.units import format_count, format_number_of

_NAMED = 3
_SIGHT = {
    Knowledge.NONE: (
        "The trace has no data flow: for and parfor are read from names, classes and counts, not from tensors."
    ),
    Knowledge.CALLS: (
        "The trace does not follow tensors through ops: a chain shows only where an output is the next input as it is, "
        "and siblings stand side by side only where the tensors of their calls rule a chain out."
    ),
}


def size_line(view: GraphView, graph: CallGraph) -> str:
    """How much was folded into how little."""
    boxes = [box for root in view.roots for box in root.walk() if not box.is_left_out]
    shown = sum(box.calls for box in boxes if not box.is_split)
    modules = len({path for box in boxes for path, calls in zip(box.members, box.member_calls, strict=True) if calls})
    is_part = not is_whole(view, graph) or any(box.is_left_out for root in view.roots for box in root.walk())
    whole = f" of {format_count(sum(graph.call_counts.values()))}" if is_part else ""
    return (
        f"{format_count(modules)} modules and {format_count(shown)}{whole} calls in {format_count(len(boxes))} boxes, "
        f"{format_count(sum(not box.is_left_out for box in view.visible()))} of them shown."
    )


def workload_lines(graph: CallGraph) -> Iterator[str]:
    """What was run, and the notes of the trace on it."""
    if graph.workload:
        yield workload_note([graph]).text
    yield from (note.text for note in run_notes([graph]))


def reservation_lines(view: GraphView, graph: CallGraph, flow: DataFlow, homes: ParameterHomes | None) -> Iterator[str]:
    """What a reader must know to read the figures and loops rightly."""
    if flow.knowledge in _SIGHT:
        yield _SIGHT[flow.knowledge]
    if graph.stopped_in is not None:
        yield f"Warning: the run stopped in {graph.stopped_in}; what follows is missing."
    if view.totals.unpriced_ops:
        yield f"Warning: {format_count(view.totals.unpriced_ops)} ops have no price and are in no total."
        yield "FLOPs and bytes with such ops in them are lower bounds (>=), or unknown (?) where nothing has a price."
    yield from _shared_lines(view)
    if is_whole(view, graph):
        yield from _outside_lines(view, graph, homes)


def series_lines(groups: list[Group], tree: CallTree, flow: DataFlow) -> Iterator[str]:
    """Uses of one instance are a parfor; where they do feed each other, a line says so."""
    fed = [group for root in groups for group in root.walk() if are_uses_in_series(group, tree, flow)]
    inner = [group for group in fed if tree.parent[group.rows[0]] >= 0]
    names = [tree.paths[path] for group in inner for path in group.paths]
    if names:
        yield f"Used several times by one caller, each use fed by an earlier one: {_some(names)}."


def _shared_lines(view: GraphView) -> Iterator[str]:
    boxes: dict[str, list[Box]] = {}
    for root in view.roots:
        for box in root.walk():
            if not box.is_split:
                for path in box.members:
                    boxes.setdefault(path, []).append(box)
    shared = [path for path, found in boxes.items() if len(found) > 1]
    if shared:
        yield f"In several boxes, one per caller, with parameters in the first: {_some(shared)}."


def _outside_lines(view: GraphView, graph: CallGraph, homes: ParameterHomes | None) -> Iterator[str]:
    outside = outside_figures(graph)
    if graph.ops is not None and (ops := graph.ops.call.count(-1)):
        yield (
            f"Outside any module, in the totals and in no box: {format_count(ops)} ops, "
            f"{_amount(outside.flops, 'FLOPs', outside)}, {_amount(outside.bytes_moved, 'bytes', outside)}."
        )
    if homes is not None and homes.idle:
        idle, names = sum(homes.idle.values()), _some(_outermost(homes.idle, view))
        why = "Not run" if recorded_only(graph.workload) is None else "Not run, or not recorded"
        yield f"{why}, in the totals and in no box: {format_count(idle)} parameters of {names}."


def _amount(value: int | None, unit: str, figures: Figures) -> str:
    """`6 FLOPs`, `at least 6 FLOPs`, `FLOPs unknown`."""
    if value is None:
        return f"{unit} unknown"
    return f"{'at least ' if figures.unpriced_ops else ''}{format_count(value)} {unit}"


def _outermost(paths: Iterable[str], view: GraphView) -> list[str]:
    """For each path the largest part of the model around it that is in no box."""
    shown = {path for root in view.roots for box in root.walk() for path in box.members}
    found: dict[str, None] = {}
    for path in paths:
        above = path.rpartition(".")[0]
        while above and above not in shown:
            path, above = above, above.rpartition(".")[0]
        found.setdefault(path)
    return list(found)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {format_count(more)} more" if more > 0 else "")


def runtime_lines(graph: CallGraph, knowledge: Knowledge, chain_lengths: set[int]) -> list[str]:
    """One line with the facts, and a warning for each that the structure contradicts."""
    facts = list(_facts(graph))
    if not facts:
        return []
    findings = [*_depth_findings(graph, knowledge, chain_lengths), *_image_findings(graph), *_step_findings(graph)]
    warnings = [finding for finding in findings if finding is not None]
    agreed = ", as found in the structure" if findings and not warnings else ""
    return [f"Runtime: {', '.join(facts)}{agreed}.", *(f"Warning: {warning}." for warning in warnings)]


Finding = str | None  # what is wrong, or None for a fact that the structure confirms


def _facts(graph: CallGraph) -> Iterator[str]:
    runtime = graph.runtime
    if _is_count(images := runtime.get("images")) and images:
        yield format_number_of(images, "image")
    if _is_counts(crops := runtime.get("crops_per_image")) and crops:
        yield f"{'+'.join(map(str, crops))} crops"
    if _is_count(depth := runtime.get("decoder_depth")):
        yield f"decoder depth {format_count(depth)}"
    if _is_count(steps := runtime.get("decode_steps")) and steps:
        yield format_number_of(steps, "decode step")
    if _is_count(tokens := runtime.get("new_tokens")) and tokens:
        yield format_number_of(tokens, "new token")


def _depth_findings(graph: CallGraph, knowledge: Knowledge, chain_lengths: set[int]) -> Iterator[Finding]:
    depth = graph.runtime.get("decoder_depth")
    if not _is_count(depth) or depth < 2 or knowledge is Knowledge.CALLS:
        return
    found = ", ".join(map(str, sorted(length for length in chain_lengths if length > 1))) or "none"
    yield (
        None
        if depth in chain_lengths
        else f"the decoder is said to have {depth} layers in series, and no chain is that long; chains found: {found}"
    )


def _image_findings(graph: CallGraph) -> Iterator[Finding]:
    """Modules of a stage run once for each image as a whole, and once more for its crops together."""
    crops = graph.runtime.get("crops_per_image")
    if not _is_counts(crops) or graph.runtime.get("images") != len(crops):
        return
    expected = sum(1 + (count > 0) for count in crops)
    if not graph.stages and graph.calls is None:
        for path, calls in _repeated_on_top(graph):
            wrong = f"{path} ran {format_number_of(calls, 'time')}; the images and crops make {expected}"
            yield None if calls == expected else wrong
    for stage, paths in graph.stages:
        for path in paths:
            calls = graph.call_counts.get(path, 0)
            wrong = f"{stage} ({path}) ran {format_number_of(calls, 'time')}; the images and crops make {expected}"
            yield None if calls == expected else wrong


def _repeated_on_top(graph: CallGraph) -> Iterator[tuple[str, int]]:
    """Uses per forward of what the outermost module, seen or not, runs more than once."""
    calls: Mapping[str, int] = graph.root_calls
    forwards = min(calls.values(), default=0)
    if len(calls) == 1:
        [top] = calls
        edges = ((split_edge(edge, graph.call_counts), count) for edge, count in graph.edges.items())
        calls = {sides[1]: count for sides, count in edges if sides is not None and sides[0] == top}
    yield from ((path, count // forwards) for path, count in calls.items() if count > forwards)


def _step_findings(graph: CallGraph) -> Iterator[Finding]:
    steps = graph.runtime.get("decode_steps")
    calls = sum(graph.root_calls.values())
    if _is_count(steps) and steps and calls:
        wanted, often = format_number_of(steps, "decode step"), format_number_of(calls, "time")
        wrong = f"{wanted} should call the model as often; it was called {often}"
        yield None if calls == steps else wrong


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_counts(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, (list, tuple)) and all(map(_is_count, value))
