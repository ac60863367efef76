"""Nothing is lost and nothing counted twice: a view checked against its trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import compress

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.graph_view import Box, Figures, GraphView
from llm_perf_opt.core.units import macs_of
from llm_perf_opt.costs.collectives import collectives_by_call
from llm_perf_opt.costs.coverage import counted_or_unknown, priced_total
from llm_perf_opt.costs.parameters import untied
from llm_perf_opt.graphs.boxes import FIGURE_NAMES, PRICED_FIGURES, sum_of, together
from llm_perf_opt.graphs.call_tree import memory_of, parameter_homes
from llm_perf_opt.ops.cost import elements


def check_conservation(view: GraphView, graph: CallGraph) -> list[str]:
    """Every way in which the view and the trace disagree, one sentence each; empty when all is conserved."""
    boxes = [box for root in view.roots for box in root.walk()]
    problems = [problem for box in boxes for problem in _box_problems(box)]
    is_complete = is_whole(view, graph)
    problems += _call_problems(boxes, graph, is_complete)
    if is_complete:
        problems += _total_problems(view, graph, boxes)
        problems += _collective_problems(view, graph)
    return problems


def is_whole(view: GraphView, graph: CallGraph) -> bool:
    """Whether the view shows the run from its roots on, and not one part of it."""
    shown = {path: calls for root in view.roots for path, calls in _member_calls(root) if calls}
    if graph.root_calls:
        return shown == dict(graph.root_calls)
    # A file that does not name its roots has them where no edge arrives.
    return sum(shown.values()) == sum(graph.call_counts.values()) - sum(graph.edges.values())


def trace_totals(graph: CallGraph) -> Figures:
    """The whole run, added up over its ops without asking which call they ran in."""
    counts = None if graph.ops is None else count_kinds(graph)
    return _figures_of(counts, parameters=_all_parameters(graph), activation_bytes=_all_activations(graph))


def outside_figures(graph: CallGraph) -> Figures:
    """What ran outside any module. Weights belong to modules, so there are none here."""
    counts: dict[OpKind, int] = {}
    born = 0
    if graph.ops is not None and -1 in graph.ops.call:
        outside = {op for op, call in enumerate(graph.ops.call) if call < 0}
        for op in outside:
            kind = graph.op_kinds[graph.ops.kind[op]]
            counts[kind] = counts.get(kind, 0) + 1
        born = _born_bytes(graph, outside)
    return _figures_of(counts, parameters=0, activation_bytes=born)


def _figures_of(
    counts: Mapping[OpKind, int] | None, *, parameters: int | None, activation_bytes: int | None
) -> Figures:
    """Of ops by kind; None where the trace holds none at all."""
    if counts is None:
        return Figures(
            flops=None,
            macs=None,
            bytes_moved=None,
            parameters=parameters,
            activation_bytes=activation_bytes,
            unpriced_ops=None,
        )
    cost, listed = priced_total(counts)
    unpriced = sum(op.count for op in listed)
    flops = counted_or_unknown(cost.flops, unpriced)
    return Figures(
        flops=flops,
        macs=macs_of(flops),
        bytes_moved=counted_or_unknown(cost.bytes_moved, unpriced),
        parameters=parameters,
        activation_bytes=activation_bytes,
        unpriced_ops=unpriced,
    )


def _born_bytes(graph: CallGraph, ops: set[int]) -> int:
    """Activations that one of the ops brought to life."""
    if graph.storages is None:
        return 0
    columns = zip(graph.storages.origin, graph.storages.born_op, graph.storages.bytes, strict=True)
    return sum(size for origin, start, size in columns if origin == "activation" and start in ops)


def _all_parameters(graph: CallGraph) -> int | None:
    if not graph.parameters and graph.ops is None:
        return None
    return sum(elements(parameter.meta) for parameter in untied(graph.parameters))


def _all_activations(graph: CallGraph) -> int | None:
    if graph.ops is None or (storages := memory_of(graph)) is None:
        return None
    end = len(graph.ops.kind)
    never_written = _born_bytes(graph, {end}) if end in storages.born_op else 0
    return sum(compress(storages.bytes, map("activation".__eq__, storages.origin))) - never_written


def _box_problems(box: Box) -> Iterator[str]:
    """Inside one box: figures are its own plus the inner boxes', and calls are its members'."""
    if box.figures != sum_of([box.own, *(child.figures for child in box.children)]):
        yield f"{box.label}: its figures are not the sum of its own and the inner boxes' figures"
    if box.collectives != together([box.own_collectives, *(child.collectives for child in box.children)]):
        yield f"{box.label}: its collectives are not the sum of its own and the inner boxes' collectives"
    if sum(box.member_calls) != box.calls or not len(box.member_calls) == len(box.members) == box.instances:
        yield f"{box.label}: its members do not add up to {box.instances} instances and {box.calls} calls"
    if box.is_split:
        parts = {path: calls for part in box.children for path, calls in _member_calls(part)}
        if parts != dict(_member_calls(box)):
            yield f"{box.label}: its parts are not its members"


def _member_calls(box: Box) -> Iterator[tuple[str, int]]:
    return zip(box.members, box.member_calls, strict=True)


def _call_problems(boxes: list[Box], graph: CallGraph, is_complete: bool) -> Iterator[str]:
    """Every call of every module is in one box; in a view of a part, none is in two."""
    shown: dict[str, int] = {}
    for box in boxes:
        if not box.is_split:
            for path, calls in _member_calls(box):
                shown[path] = shown.get(path, 0) + calls
    for path, calls in graph.call_counts.items():
        seen = shown.get(path, 0)
        if seen > calls or (is_complete and seen < calls):
            yield f"{path!r} was called {calls} times, the boxes hold {seen}"


def _collective_problems(view: GraphView, graph: CallGraph) -> Iterator[str]:
    """Every collective is in one box, or in no module."""
    counts = collectives_by_call(graph)
    total = sum(count.total() for count in counts.values()) - counts.get(-1, Counter()).total()
    boxed = sum(part.count for root in view.roots for part in root.collectives)
    if boxed != total:
        yield f"the boxes hold {boxed} collectives, the modules of the trace ran {total}"


def _total_problems(view: GraphView, graph: CallGraph, boxes: list[Box]) -> Iterator[str]:
    homes = parameter_homes(graph, {path for box in boxes for path in box.members})
    outside, totals = outside_figures(graph), trace_totals(graph)
    shown = sum_of([root.figures for root in view.roots])
    for name in FIGURE_NAMES:
        boxed, total = getattr(shown, name), getattr(totals, name)
        if getattr(view.totals, name) != total:
            yield f"{name}: the view says {getattr(view.totals, name)} in all, the trace has {total}"
        beside = getattr(outside, name)
        if name in PRICED_FIGURES and graph.ops is not None:  # unknown is then: no op with a price adds to it
            boxed, beside, total = boxed or 0, beside or 0, total or 0
        if boxed is None or total is None:
            continue
        beside += sum(homes.idle.values()) if homes and name == "parameters" else 0
        if boxed + beside != total:
            yield f"{name}: the boxes hold {boxed} and {beside} is outside of them, the trace has {total}"
