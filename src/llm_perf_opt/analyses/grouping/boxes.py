"""Groups of calls turned into the boxes of a view, with names, loops, figures and arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from llm_perf_opt.analyses.grouping.box_tensors import BoxTensors
from llm_perf_opt.analyses.grouping.call_figures import CallFigures
from llm_perf_opt.analyses.grouping.call_tree import CallTree
from llm_perf_opt.analyses.grouping.data_flow import DataFlow
from llm_perf_opt.analyses.grouping.groups import Group
from llm_perf_opt.analyses.grouping.loops import loops_of
from llm_perf_opt.analyses.grouping.parameter_homes import ParameterHomes
from llm_perf_opt.analyses.known_sum import counted_or_unknown, known_sum, priced_sum
from llm_perf_opt.analyses.path_labels import label_of
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import stage_names, stage_of_calls
from llm_perf_opt.document import Arrow, Box, Figures

FIGURE_NAMES = tuple(figure.name for figure in fields(Figures))
PRICED_FIGURES = ("flops", "macs", "bytes_moved")  # of ops that have a price, so that they may be lower bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a box is made from."""

    graph: CallGraph
    tree: CallTree
    flow: DataFlow
    figures: CallFigures
    parameters: ParameterHomes | None


class BoxMaker:
    """Makes the boxes of one view; a weight counts in the first box that holds its module."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tensors = BoxTensors(facts.graph)
        self._homes = dict(facts.parameters.by_path) if facts.parameters is not None else None
        self._numbers = count()
        self._stages = stage_names(facts.graph)
        self._stage_of_call = stage_of_calls(facts.graph) if facts.graph.calls is not None else None

    def box(self, group: Group) -> Box:
        """The box of a group and everything inside it, numbered outer before inner."""
        number = next(self._numbers)
        members, calls = self._members(group)
        own = self._nothing() if group.is_split else self._own(group, members)
        children = [self.box(child) for child in group.children]
        called = members[: len(group.paths)]
        return Box(
            id=f"b{number}",
            class_name=group.class_name,
            path=label_of(members),
            stage=self._stage(group),
            instances=len(members),
            calls=sum(calls),
            calls_per_instance=tuple(sorted(set(calls))),
            loops=loops_of(group, self._facts.tree, self._facts.flow),
            figures=sum_of([own, *(child.figures for child in children)]),
            own=own,
            constructor_params=_shared_params(self._facts.graph, members),
            inputs=self._tensors.inputs(group.rows, called),
            outputs=self._tensors.outputs(group.rows, called),
            members=tuple(members),
            member_calls=tuple(calls),
            children=tuple(children),
            arrows=tuple(self._arrows(group, children)),
            is_split=group.is_split,
        )

    def _members(self, group: Group) -> tuple[list[str], list[int]]:
        """Paths, those that were called first, and the calls of each."""
        tree = self._facts.tree
        calls = dict.fromkeys(group.paths, 0)
        for row in group.rows:
            calls[tree.path[row]] += tree.weight[row]
        members = [*(tree.paths[path] for path in group.paths), *group.untouched]
        return members, [*calls.values(), *[0] * len(group.untouched)]

    def _stage(self, group: Group) -> str:
        if self._stage_of_call is None:
            return self._facts.graph.phase
        return self._stages[self._stage_of_call[group.rows[0]]]

    def _own(self, group: Group, members: list[str]) -> Figures:
        figures = self._facts.figures
        parameters = None
        if self._homes is not None:
            parameters = sum(self._homes.pop(path, 0) for path in members)
        unpriced = _sum_at(figures.unpriced_ops, group.rows)
        flops = counted_or_unknown(_sum_at(figures.flops, group.rows), unpriced)
        return Figures(
            flops=flops,
            macs=None if flops is None else flops // 2,
            bytes_moved=counted_or_unknown(_sum_at(figures.bytes_moved, group.rows), unpriced),
            parameters=parameters,
            activation_bytes=_sum_at(figures.activation_bytes, group.rows),
            unpriced_ops=unpriced,
        )

    def _nothing(self) -> Figures:
        """Zero where something is known at all: the parts of a box parted by cost hold everything."""
        figures = self._facts.figures
        flops = _sum_at(figures.flops, ())
        return Figures(
            flops=flops,
            macs=flops,
            bytes_moved=_sum_at(figures.bytes_moved, ()),
            parameters=None if self._homes is None else 0,
            activation_bytes=_sum_at(figures.activation_bytes, ()),
            unpriced_ops=_sum_at(figures.unpriced_ops, ()),
        )

    def _arrows(self, group: Group, children: list[Box]) -> Iterator[Arrow]:
        """Tensors that go from one inner box to another; between the parts of a box, those its callers passed on."""
        tree = self._facts.tree
        id_of = {path: box.id for child, box in zip(group.children, children, strict=True) for path in child.paths}
        callers = dict.fromkeys(tree.parent[row] for row in group.rows) if group.is_split else group.rows
        counts: dict[tuple[str, str], int] = {}
        for caller in callers:
            for source, target in self._facts.flow.arrows.get(caller, ()):
                ends = (id_of.get(source), id_of.get(target))
                if ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
                    counts[ends[0], ends[1]] = counts.get((ends[0], ends[1]), 0) + 1
        for (source_id, target_id), calls in counts.items():
            yield Arrow(source=source_id, target=target_id, calls=calls)


def sum_of(figures: Sequence[Figures]) -> Figures:
    """Field by field; one unknown part makes a sum unknown, and a priced one the lower bound that the others give."""
    columns = {name: [getattr(part, name) for part in figures] for name in FIGURE_NAMES}
    return Figures(**{name: _sum(column, name) for name, column in columns.items()})


def _sum(values: list[int | None], name: str) -> int | None:
    if not values:
        return 0
    return priced_sum(values) if name in PRICED_FIGURES else known_sum(values)


def _sum_at(column: Sequence[int] | None, rows: Sequence[int]) -> int | None:
    return None if column is None else sum(map(column.__getitem__, rows))


def _shared_params(graph: CallGraph, members: list[str]) -> Mapping[str, Any]:
    """Constructor parameters on which all members agree."""
    tables = {id(table): table for path in members if (table := graph.constructor_params.get(path)) is not None}
    first, *others = tables.values() or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
