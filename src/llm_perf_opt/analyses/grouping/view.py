"""A call graph as a grouped view: families, loops, figures that add up, and a choice of what to show."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.analyses.grouping.boxes import BoxMaker, Facts, sum_of
from llm_perf_opt.analyses.grouping.call_figures import call_figures
from llm_perf_opt.analyses.grouping.call_tree import CallTree, call_tree
from llm_perf_opt.analyses.grouping.captions import reservation_lines, series_lines, size_line, workload_lines
from llm_perf_opt.analyses.grouping.conservation import check_conservation, is_whole, trace_totals
from llm_perf_opt.analyses.grouping.data_flow import data_flow
from llm_perf_opt.analyses.grouping.families import Families
from llm_perf_opt.analyses.grouping.focus import find_groups
from llm_perf_opt.analyses.grouping.groups import Group, Grouper
from llm_perf_opt.analyses.grouping.kinship import kinship
from llm_perf_opt.analyses.grouping.opening import open_to_depth, open_to_fit
from llm_perf_opt.analyses.grouping.parameter_homes import parameter_homes
from llm_perf_opt.analyses.grouping.runtime_facts import runtime_lines
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import stage_names
from llm_perf_opt.document import GraphView

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
    kin = kinship(graph, tree.paths)
    flow = data_flow(graph, tree, kin)
    families = Families(graph, tree, kin, flow)
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
