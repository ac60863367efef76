"""A call graph as a grouped view: families, loops, figures that add up, and the part that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from llm_perf_opt.analyses.grouping.boxes import BoxMaker, Facts, sum_of
from llm_perf_opt.analyses.grouping.call_tree import (
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
from llm_perf_opt.analyses.grouping.data_flow import Knowledge, data_flow
from llm_perf_opt.analyses.grouping.families import Families
from llm_perf_opt.analyses.grouping.filtering import box_filter, filter_line, filtered
from llm_perf_opt.analyses.grouping.focus import find_groups
from llm_perf_opt.analyses.grouping.groups import Group, Grouper, UngroupedCalls, open_to_depth, open_to_fit
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import stage_names
from llm_perf_opt.core.graph_view import GraphView

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
    whole = _whole_view(facts, groups, focus)
    wanted = box_filter(whole, only=only, stage=stage, min_share=min_share)
    chosen = whole if wanted is None else _checked(filtered(whole, wanted, graph, metric), graph)
    if ungrouped:
        chosen = replace(chosen, is_ungrouped=True)
        depth = ALL_LEVELS if depth is None else depth
    view = _opened(chosen, depth, max_boxes, metric)
    caption = (
        size_line(view, graph),
        *(() if wanted is None else (filter_line(view, wanted, metric),)),
        *workload_lines(graph),
        *runtime_lines(graph, flow.knowledge, families.chain_lengths()),
        *reservation_lines(whole, graph, flow, homes),
        *series_lines(groups, tree, flow),
    )
    return replace(view, caption=caption)


def _whole_view(facts: Facts, groups: list[Group], focus: str | None) -> GraphView:
    """Every box, checked to add up."""
    graph, maker = facts.graph, BoxMaker(facts)
    roots = tuple(maker.box(found) for found in groups)
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
        for found in root.walk()
        for name in (*(tree.paths[path] for path in found.paths), *found.untouched)
    }
