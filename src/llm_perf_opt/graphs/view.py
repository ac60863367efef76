"""A call graph as a grouped view: families, loops, figures that add up, and the part that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from llm_perf_opt.core.callgraph.aggregates import split_edge
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import stage_names
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import (
    Arrow,
    Box,
    Figures,
    GraphView,
    Metric,
    inclusive,
    metric_named,
    own,
    share,
    total,
)
from llm_perf_opt.core.module_selection import ModuleSelection, chosen_stages, recorded_only, unknown_terms
from llm_perf_opt.core.units import format_count, format_number_of, format_ratio
from llm_perf_opt.costs.run_description import run_notes, workload_note
from llm_perf_opt.graphs.boxes import BoxMaker, Facts, are_uses_in_series, sum_of, together
from llm_perf_opt.graphs.call_tree import (
    CallTree,
    ParameterHomes,
    call_figures,
    call_tree,
    called_modules,
    parameter_homes,
)
from llm_perf_opt.graphs.conservation import check_conservation, is_whole, outside_figures, trace_totals
from llm_perf_opt.graphs.data_flow import DataFlow, Knowledge, data_flow
from llm_perf_opt.graphs.families import Families
from llm_perf_opt.graphs.groups import (
    Group,
    Grouper,
    UngroupedCalls,
    find_groups,
    open_to_depth,
    open_to_fit,
)

MAX_BOXES = 40
ALL_LEVELS = 1_000


def group(
    graph: CallGraph,
    *,
    depth: int | None = None,
    focus: str | None = None,
    max_boxes: int = MAX_BOXES,
    metric: str = "flops",
    only: str | Iterable[str] | None = None,
    stage: str | Iterable[str] | None = None,
    min_share: float | str | None = None,
    ungrouped: bool = False,
) -> GraphView:
    """Fold the graph into families, and open as many boxes as fit, or exactly `depth` levels.

    `focus` is a module, or the label of a family, to be the root of the view. `only` (families, classes, paths),
    `stage` and `min_share` of the metric leave boxes out. The view holds all others, open or not, and is checked to
    conserve calls, FLOPs, bytes and parameters. `ungrouped` folds nothing and opens everything.
    """
    tree = call_tree(graph)
    modules = called_modules(graph, tree.paths)
    flow = data_flow(graph, tree, modules)
    families = Families(graph, tree, modules, flow)
    figures = call_figures(graph)
    grouper = (UngroupedCalls if ungrouped else Grouper)(graph, tree, families, figures.flops)
    groups = grouper.roots() if focus is None else find_groups(graph, tree, grouper, focus)
    homes = parameter_homes(graph, _shown_paths(groups, tree))
    facts = Facts(graph=graph, tree=tree, flow=flow, figures=figures, parameters=homes)
    full_view = _whole_view(facts, groups, focus)
    wanted = box_filter(full_view, only=only, stage=stage, min_share=min_share)
    chosen = full_view if wanted is None else _checked(filtered(full_view, wanted, graph, metric), graph)
    if ungrouped:
        chosen = replace(chosen, is_ungrouped=True)
        depth = ALL_LEVELS if depth is None else depth
    view = _opened(chosen, depth, max_boxes, metric)
    caption = (
        size_line(view, graph),
        *(() if wanted is None else (filter_line(view, wanted, metric),)),
        *workload_lines(graph),
        *runtime_lines(graph, flow.knowledge, families.chain_lengths()),
        *reservation_lines(full_view, graph, flow, homes),
        *series_lines(groups, tree, flow),
    )
    return replace(view, caption=caption)


def _whole_view(facts: Facts, groups: list[Group], focus: str | None) -> GraphView:
    """Every box, checked to add up."""
    graph, maker = facts.graph, BoxMaker(facts)
    roots = tuple(maker.box(group) for group in groups)
    view = GraphView(
        title=_title(facts, focus),
        caption=(),
        roots=roots,
        totals=sum_of([root.figures for root in roots]),
        stages=stage_names(graph),
    )
    if is_whole(view, graph):  # then also with what ran in no module, and what did not run
        view = replace(view, totals=trace_totals(graph))
    return _checked(view, graph)


def _title(facts: Facts, focus: str | None) -> str:
    """Model, phase and focus. Loops that are no finding of data flow are marked here: every drawing shows its title."""
    title = " ".join(filter(None, (facts.graph.model, facts.graph.phase))) + (f": {focus}" if focus else "")
    return f"{title}, loops read from names and counts" if facts.flow.knowledge is Knowledge.NONE else title


def _checked(view: GraphView, graph: CallGraph) -> GraphView:
    problems = check_conservation(view, graph)
    assert not problems, "; ".join(problems)
    return view


def _opened(view: GraphView, depth: int | None, max_boxes: int, metric: str) -> GraphView:
    return open_to_fit(view, max_boxes, metric) if depth is None else open_to_depth(view, depth)


def _shown_paths(groups: list[Group], tree: CallTree) -> set[str]:
    return {
        name
        for root in groups
        for box in root.walk()
        for name in (*(tree.paths[path] for path in box.paths), *box.untouched)
    }


# A picture of the modules that were asked for: what is left out stands in boxes of its own, so that nothing is lost.
#
# A box stays if it is chosen, or if a chosen one is inside it. What goes is put together in one box for each stage,
# `left out: 12 modules of prefill`, inside the box that called it. Figures, calls and members of all boxes still add
# up.

LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFilter:
    """Which boxes to show. A family is shown whole if one of its members is chosen."""

    only: ModuleSelection | None = None
    stages: tuple[str, ...] = ()
    min_share: float | None = None  # of the metric, from 0 to 1

    def text(self, metric: Metric) -> str:
        """As a caption says it: `linear, conv; stage sam; at least 0.5 % of FLOPs`."""
        parts = [str(self.only)] if self.only else []
        parts += [f"stage {', '.join(self.stages)}"] if self.stages else []
        parts += [f"at least {self.min_share * 100:g} % of {metric.words}"] if self.min_share is not None else []
        return "; ".join(parts)


def box_filter(
    view: GraphView,
    *,
    only: str | Iterable[str] | None = None,
    stage: str | Iterable[str] | None = None,
    min_share: float | str | None = None,
) -> BoxFilter | None:
    """The filter that was asked for, None for none; words that choose nothing are refused."""
    if only is None and stage is None and min_share is None:
        return None
    return BoxFilter(
        only=None if only is None else ModuleSelection.parse(only),
        stages=() if stage is None else chosen_stages(stage, view.stages),
        min_share=None if min_share is None else read_share(min_share),
    )


def read_share(given: float | str) -> float:
    """`0.5%` from the command line; a number from Python is a fraction of one."""
    text = given.strip() if isinstance(given, str) else ""
    try:
        fraction = float(text.removesuffix("%")) / 100 if isinstance(given, str) else float(given)
    except ValueError:
        fraction = -1.0
    if (isinstance(given, str) and not text.endswith("%")) or not 0 <= fraction <= 1:
        raise UsageError(
            f"{given!r} is not a share.",
            why="a share is a percentage with its sign, from 0% to 100%",
            fix="write --min-share 0.5%, or 0.005 in Python",
        )
    return fraction


def filtered(view: GraphView, wanted: BoxFilter, graph: CallGraph, metric: str) -> GraphView:
    """The chosen boxes and those around them, in the order of before; roots always stay."""
    measure, total_cost = metric_named(metric), total(view, metric_named(metric))
    if wanted.min_share is not None and total_cost is None:
        raise UsageError(
            f"--min-share does not work here: the {measure.words} of this trace are unknown.",
            why="the tracer saw no ops with a price",
            fix="choose --metric calls, or trace with --tracer weightless",
        )
    _require_matches(view, wanted, graph)
    shown_ids = _kept(view, _chooser(wanted, graph, measure, total_cost))
    if not shown_ids:
        raise UsageError(
            f"Nothing in this picture is {wanted.text(measure)}.",
            why="no box passes the filter",
            fix="choose a wider one",
        )
    return replace(view, roots=tuple(_pruned(root, shown_ids) for root in view.roots))


def filter_line(view: GraphView, wanted: BoxFilter, metric: str) -> str:
    """What was asked for, how much is left out, and where that stands."""
    measure = metric_named(metric)
    gone = [box for root in view.roots for box in root.walk() if box.is_left_out]
    if not gone:
        return f"Only {wanted.text(measure)}: that is everything, so nothing is left out."
    modules = {path for box in gone for path in box.members}
    costs = [own(box, measure) for box in gone]
    cost = None if None in costs else sum(value for value in costs if value is not None)
    part = share(cost, total(view, measure))
    of_metric = f"{measure.words} unknown" if part is None else f"{format_ratio(part)} of {measure.words}"
    return (
        f"Only {wanted.text(measure)}, with the boxes around it. Left out: {format_count(len(modules))} modules, "
        f"{format_count(sum(box.calls for box in gone))} calls, {of_metric}; they are in the boxes named {LEFT_OUT}."
    )


def _require_matches(view: GraphView, wanted: BoxFilter, graph: CallGraph) -> None:
    if wanted.only is None:
        return
    shown = {path: box.class_name for root in view.roots for box in root.walk() for path in box.members}
    classes = {**graph.module_types, **shown}  # what did not run is no mistake
    modules = [(path, name, graph.constructor_params.get(path, {})) for path, name in classes.items()]
    if missing := wanted.only.terms_without(modules):
        raise unknown_terms(missing, shown.values())


def _chooser(wanted: BoxFilter, graph: CallGraph, metric: Metric, total_cost: int | None) -> Callable[[Box], bool]:
    no_params: Mapping[str, object] = {}

    def is_chosen(box: Box) -> bool:
        if wanted.stages and box.stage not in wanted.stages:
            return False
        if wanted.min_share is not None:
            part = share(inclusive(box, metric), total_cost)
            if part is not None and part < wanted.min_share:  # what is not known is not small
                return False
        return wanted.only is None or any(
            wanted.only.takes(path, box.class_name, graph.constructor_params.get(path, no_params))
            for path in box.members
        )

    return is_chosen


def _kept(view: GraphView, is_chosen: Callable[[Box], bool]) -> set[str]:
    """Ids of the boxes that are chosen or hold a chosen one."""
    shown_ids: set[str] = set()
    for root in view.roots:
        for box in reversed(list(root.walk())):  # inner before outer
            if is_chosen(box) or any(child.id in shown_ids for child in box.children):
                shown_ids.add(box.id)
    return shown_ids


def _pruned(box: Box, shown_ids: set[str]) -> Box:
    """The parts of a box that is told apart by cost stay together: they are its members."""
    stays = [child for child in box.children if box.is_split or child.id in shown_ids]
    goes = [child for child in box.children if not box.is_split and child.id not in shown_ids]
    children = (*(_pruned(child, shown_ids) for child in stays), *_left_out(box, goes))
    return replace(box, children=children, arrows=_bridged(box.arrows, {child.id for child in goes}))


def _left_out(around: Box, goes: list[Box]) -> list[Box]:
    """One box for each stage, in the order of the calls."""
    by_stage: dict[str, list[Box]] = {}
    for gone in goes:
        for box in gone.walk():
            if not box.is_split:
                by_stage.setdefault(box.stage, []).append(box)
    return [_together(f"{around.id}-{number}", stage, boxes) for number, (stage, boxes) in enumerate(by_stage.items())]


def _together(box_id: str, stage: str, boxes: list[Box]) -> Box:
    calls: dict[str, int] = {}
    for box in boxes:
        for path, count in zip(box.members, box.member_calls, strict=True):
            calls[path] = calls.get(path, 0) + count
    figures = sum_of([box.own for box in boxes])
    collectives = together(box.own_collectives for box in boxes)
    return Box(
        id=box_id,
        class_name=LEFT_OUT,
        path="",
        stage=stage,
        instances=len(calls),
        calls=sum(calls.values()),
        calls_per_instance=tuple(sorted(set(calls.values()))),
        loops=(),
        figures=figures,
        own=figures,
        collectives=collectives,
        own_collectives=collectives,
        members=tuple(calls),
        member_calls=tuple(calls.values()),
        is_left_out=True,
    )


def _bridged(arrows: tuple[Arrow, ...], goes: set[str]) -> tuple[Arrow, ...]:
    """Arrows between what stays. A way through boxes left out is one arrow, with the fewest calls on the way."""
    by_source: dict[str, list[Arrow]] = {}
    for arrow in arrows:
        by_source.setdefault(arrow.source, []).append(arrow)
    fewest_calls: dict[tuple[str, str], int] = {}
    for source in (source for source in by_source if source not in goes):
        seen: set[str] = set()
        waiting = [(arrow.target, arrow.calls) for arrow in by_source[source]]
        while waiting:
            target, calls = waiting.pop(0)
            if target not in goes:
                if target != source:
                    fewest_calls[source, target] = max(calls, fewest_calls.get((source, target), 0))
            elif target not in seen:
                seen.add(target)
                waiting += [(arrow.target, min(calls, arrow.calls)) for arrow in by_source.get(target, ())]
    return tuple(Arrow(source=source, target=target, calls=calls) for (source, target), calls in fewest_calls.items())


_NAMED = 3
_SIGHT = {
    Knowledge.NONE: ("The trace has no data flow, so for and parfor are guessed from names, classes and counts."),
    Knowledge.CALLS: (
        "The trace does not follow tensors through ops. A chain shows only where an output is directly the next input, "
        "and siblings are parallel only where the tensors of their calls rule a chain out."
    ),
}


def size_line(view: GraphView, graph: CallGraph) -> str:
    """How much was folded into how little."""
    boxes = [box for root in view.roots for box in root.walk() if not box.is_left_out]
    shown = sum(box.calls for box in boxes if not box.is_split)
    modules = len({path for box in boxes for path, calls in zip(box.members, box.member_calls, strict=True) if calls})
    is_part = not is_whole(view, graph) or any(box.is_left_out for root in view.roots for box in root.walk())
    of_all = f" of {format_count(sum(graph.call_counts.values()))}" if is_part else ""
    return (
        f"{format_count(modules)} modules and {format_count(shown)}{of_all} calls in {format_count(len(boxes))} boxes, "
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
        yield f"Warning: {format_count(view.totals.unpriced_ops)} ops have no price and are left out of every total."
        yield "FLOPs and bytes that include such ops are lower bounds (>=), or unknown (?) where nothing has a price."
    yield from _shared_lines(view)
    if is_whole(view, graph):
        yield from _outside_lines(view, graph, homes)


def series_lines(groups: list[Group], tree: CallTree, flow: DataFlow) -> Iterator[str]:
    """Uses of one instance are a parfor; where they do feed each other, a line says so."""
    fed = [group for root in groups for group in root.walk() if are_uses_in_series(group, tree, flow)]
    inner = [group for group in fed if tree.parent[group.rows[0]] >= 0]
    names = [tree.paths[path] for group in inner for path in group.paths]
    if names:
        yield f"One caller uses these several times, and each use feeds the next: {_some(names)}."


def _shared_lines(view: GraphView) -> Iterator[str]:
    boxes: dict[str, list[Box]] = {}
    for root in view.roots:
        for box in root.walk():
            if not box.is_split:
                for path in box.members:
                    boxes.setdefault(path, []).append(box)
    shared = [path for path, in_boxes in boxes.items() if len(in_boxes) > 1]
    if shared:
        yield f"These modules are in several boxes, one per caller, with parameters in the first: {_some(shared)}."


def _outside_lines(view: GraphView, graph: CallGraph, homes: ParameterHomes | None) -> Iterator[str]:
    outside = outside_figures(graph)
    if graph.ops is not None and (ops := graph.ops.call.count(-1)):
        yield (
            f"Some work is outside any module; it is in the totals but in no box: {format_count(ops)} ops, "
            f"{_amount(outside.flops, 'FLOPs', outside)}, {_amount(outside.bytes_moved, 'bytes', outside)}."
        )
    if homes is not None and homes.idle:
        idle, names = sum(homes.idle.values()), _some(_outermost(homes.idle, view))
        why = "did not run" if recorded_only(graph.workload) is None else "did not run or were not recorded"
        yield f"These modules {why}; their {format_count(idle)} parameters are in the totals but in no box: {names}."


def _amount(value: int | None, unit: str, figures: Figures) -> str:
    """`6 FLOPs`, `at least 6 FLOPs`, `FLOPs unknown`."""
    if value is None:
        return f"{unit} unknown"
    return f"{'at least ' if figures.unpriced_ops else ''}{format_count(value)} {unit}"


def _outermost(paths: Iterable[str], view: GraphView) -> list[str]:
    """For each path the largest part of the model around it that is in no box."""
    shown = {path for root in view.roots for box in root.walk() for path in box.members}
    outermost: dict[str, None] = {}
    for path in paths:
        above = path.rpartition(".")[0]
        while above and above not in shown:
            path, above = above, above.rpartition(".")[0]
        outermost.setdefault(path)
    return list(outermost)


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
    agreed = ", which the structure confirms" if findings and not warnings else ""
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
    lengths = ", ".join(map(str, sorted(length for length in chain_lengths if length > 1))) or "none"
    yield (
        None
        if depth in chain_lengths
        else f"the decoder should have {depth} layers in series, but no chain is that long; chains found: {lengths}"
    )


def _image_findings(graph: CallGraph) -> Iterator[Finding]:
    """Modules of a stage run once for each image as a whole, and once more for its crops together."""
    crops = graph.runtime.get("crops_per_image")
    if not _is_counts(crops) or graph.runtime.get("images") != len(crops):
        return
    expected = sum(1 + (count > 0) for count in crops)
    if not graph.stages and graph.calls is None:
        for path, calls in _repeated_on_top(graph):
            wrong = f"{path} ran {format_number_of(calls, 'time')}, but the images and crops need {expected}"
            yield None if calls == expected else wrong
    for stage, paths in graph.stages:
        for path in paths:
            calls = graph.call_counts.get(path, 0)
            wrong = f"{stage} ({path}) ran {format_number_of(calls, 'time')}, but the images and crops need {expected}"
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
