"""A call graph as a grouped view: families, loops, figures that add up, and the part that was asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import replace

from llm_perf_opt.analyses.grouping.boxes import BoxMaker, Facts, sum_of
from llm_perf_opt.analyses.grouping.call_tree import (
    UNKNOWN_CLASS,
    CallTree,
    call_figures,
    call_tree,
    called_modules,
    parameter_homes,
)
from llm_perf_opt.analyses.grouping.captions import (
    reservation_lines,
    runtime_lines,
    series_lines,
    size_line,
    workload_lines,
)
from llm_perf_opt.analyses.grouping.conservation import check_conservation, is_whole, trace_totals
from llm_perf_opt.analyses.grouping.data_flow import data_flow
from llm_perf_opt.analyses.grouping.families import Families
from llm_perf_opt.analyses.grouping.groups import Group, Grouper, open_to_depth, open_to_fit
from llm_perf_opt.analyses.path_labels import label_of
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import stage_names
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import GraphView


def find_groups(graph: CallGraph, tree: CallTree, grouper: Grouper, focus: str) -> list[Group]:
    """A called module alone; otherwise the families with that label, or all that stand in that container."""
    if focus in tree.paths:
        class_name = graph.module_types.get(focus, UNKNOWN_CLASS)
        return [grouper.instance(tree.paths.index(focus), class_name)]
    labelled = {id(group): group for root in grouper.roots() for group in _outermost(root, tree, focus)}
    if not labelled:
        raise _unknown(graph, tree, grouper, focus)
    return list(labelled.values())


def _outermost(root: Group, tree: CallTree, focus: str) -> Iterator[Group]:
    waiting = [root]
    while waiting:
        group = waiting.pop()
        names = _members(group, tree)
        if label_of(names) == focus or (focus and all(name.startswith(f"{focus}.") for name in names)):
            yield group
        else:
            waiting.extend(reversed(group.children))


def _members(group: Group, tree: CallTree) -> list[str]:
    return [*(tree.paths[path] for path in group.paths), *group.untouched]


def _unknown(graph: CallGraph, tree: CallTree, grouper: Grouper, focus: str) -> UsageError:
    if focus in graph.module_types:
        return UsageError(
            f"{focus!r} did not run in the phase {graph.phase!r}.",
            why="nothing called it, nor anything inside it",
            fix="choose another --phase, or a module that ran",
        )
    labels = [label_of(_members(group, tree)) for root in grouper.roots() for group in root.walk()]
    close = difflib.get_close_matches(focus, [*labels, *tree.paths], n=3, cutoff=0.5)
    return UsageError(
        f"There is no module or family {focus!r} in this trace.",
        why="--focus takes a module path or the label of a family, as the picture shows it",
        fix=f"did you mean {' or '.join(map(repr, close))}?" if close else "see the labels with --format text",
    )


MAX_BOXES = 40


def group(
    graph: CallGraph,
    *,
    depth: int | None = None,
    focus: str | None = None,
    max_boxes: int = MAX_BOXES,
    metric: str = "flops",
) -> GraphView:
    """Fold the graph into families, and open as many boxes as fit, or exactly `depth` levels.

    `focus` is a module, or the label of a family, to be the root of the view. The view holds all boxes, open or not,
    and is checked to conserve calls, FLOPs, bytes and parameters.
    """
    tree = call_tree(graph)
    modules = called_modules(graph, tree.paths)
    flow = data_flow(graph, tree, modules)
    families = Families(graph, tree, modules, flow)
    figures = call_figures(graph)
    grouper = Grouper(graph, tree, families, figures.flops)
    groups = grouper.roots() if focus is None else find_groups(graph, tree, grouper, focus)
    homes = parameter_homes(graph, _shown_paths(groups, tree))
    facts = Facts(graph=graph, tree=tree, flow=flow, figures=figures, parameters=homes)
    view = _opened(_whole_view(facts, groups, focus), depth, max_boxes, metric)
    caption = (
        size_line(view, graph),
        *workload_lines(graph),
        *runtime_lines(graph, flow.knowledge, families.chain_lengths()),
        *reservation_lines(view, graph, flow, homes),
        *series_lines(groups, tree, flow),
    )
    return replace(view, caption=caption)


def _whole_view(facts: Facts, groups: list[Group], focus: str | None) -> GraphView:
    """Every box, checked to add up."""
    graph, maker = facts.graph, BoxMaker(facts)
    roots = tuple(maker.box(found) for found in groups)
    view = GraphView(
        title=" ".join(filter(None, (graph.model, graph.phase))) + (f": {focus}" if focus else ""),
        caption=(),
        roots=roots,
        totals=sum_of([root.figures for root in roots]),
        stages=stage_names(graph),
    )
    if is_whole(view, graph):  # then also with what ran in no module, and what did not run
        view = replace(view, totals=trace_totals(graph))
    problems = check_conservation(view, graph)
    assert not problems, "; ".join(problems)
    return view


def _opened(view: GraphView, depth: int | None, max_boxes: int, metric: str) -> GraphView:
    return open_to_fit(view, max_boxes, metric) if depth is None else open_to_depth(view, depth)


def _shown_paths(groups: list[Group], tree: CallTree) -> set[str]:
    return {
        name
        for root in groups
        for found in root.walk()
        for name in (*(tree.paths[path] for path in found.paths), *found.untouched)
    }
