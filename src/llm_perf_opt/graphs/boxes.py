"""Groups of calls turned into the boxes of a view, with names, loops, tensors, figures and arrows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate, count
from typing import Any, NamedTuple

from llm_perf_opt.core.callgraph import CallGraph, Observation
from llm_perf_opt.core.callgraph.queries import label_of, stage_names, stage_of_calls
from llm_perf_opt.core.callgraph.records import TensorMeta
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.graph_view import Arrow, Box, BoxLoop, CollectiveGroup, Figures, LoopKind, TensorGroup
from llm_perf_opt.core.module_selection import family_of, layer_experts
from llm_perf_opt.core.units import macs_of
from llm_perf_opt.costs.collectives import collectives_by_call
from llm_perf_opt.costs.coverage import counted_or_unknown, known_sum, priced_sum
from llm_perf_opt.graphs.call_tree import OUTSIDE, CallFigures, CallTree, ParameterHomes
from llm_perf_opt.graphs.data_flow import DataFlow, Knowledge
from llm_perf_opt.graphs.groups import Group
from llm_perf_opt.graphs.own_witnesses import OwnWitnesses

_SHOWN = 12  # distinct sets of tensors told apart; a router makes hundreds of them


class _Side(NamedTuple):
    counts: Sequence[int]
    ends: Sequence[int]
    metas: array[int]


class BoxTensors:
    """Reads the tensors of calls from the columns, or from the totals by module where a trace has no columns."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._texts = [_text(meta) for meta in graph.tensor_metas]
        self._sides: tuple[_Side, _Side] | None = None
        if (calls := graph.calls) is not None:
            self._sides = (
                _Side(calls.input_count, list(accumulate(calls.input_count)), calls.input_metas),
                _Side(calls.output_count, list(accumulate(calls.output_count)), calls.output_metas),
            )

    def inputs(self, rows: Sequence[int], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
        """The distinct inputs, the most frequent first."""
        if self._sides is not None:
            return self._from_rows(rows, self._sides[0])
        return _from_totals(self._graph.input_metadata, paths)

    def outputs(self, rows: Sequence[int], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
        """The distinct outputs, the most frequent first."""
        if self._sides is not None:
            return self._from_rows(rows, self._sides[1])
        return _from_totals(self._graph.output_metadata, paths)

    def _from_rows(self, rows: Sequence[int], side: _Side) -> tuple[TensorGroup, ...]:
        counts, ends, metas = side
        seen: dict[bytes, int] = {}
        example: dict[bytes, array[int]] = {}
        for row in rows:
            tensors = metas[ends[row] - counts[row] : ends[row]]
            key = tensors.tobytes()
            seen[key] = seen.get(key, 0) + 1
            example[key] = tensors
        texts = self._texts
        return _most_frequent({tuple(texts[meta] for meta in example[key]): calls for key, calls in seen.items()})


def _from_totals(observed: Mapping[str, tuple[Observation, ...]], paths: Iterable[str]) -> tuple[TensorGroup, ...]:
    seen: dict[tuple[str, ...], int] = {}
    for path in paths:
        for observation in observed.get(path, ()):
            key = tuple(map(_text, observation.tensors))
            seen[key] = seen.get(key, 0) + observation.calls
    return _most_frequent(seen)


def _most_frequent(seen: Mapping[tuple[str, ...], int]) -> tuple[TensorGroup, ...]:
    ordered = sorted(seen.items(), key=lambda item: -item[1])
    if len(ordered) > _SHOWN:
        others = ordered[_SHOWN - 1 :]
        ordered = [*ordered[: _SHOWN - 1], ((f"{len(others)} other shapes",), sum(calls for _, calls in others))]
    return tuple(TensorGroup(tensors=tensors, calls=calls) for tensors, calls in ordered)


def _text(meta: TensorMeta) -> str:
    return f"{meta.dtype}[{', '.join(map(str, meta.shape))}]"


def loops_of(group: Group, tree: CallTree, flow: DataFlow) -> tuple[BoxLoop, ...]:
    """The loop over instances first. Where a trace cannot tell how instances depend on each other, there is none."""
    uses = _uses(group, tree, flow.unseen_forwards or 1)
    return (*_over_instances(group, tree, uses), *_over_calls(group, tree, flow, uses))


def are_uses_in_series(group: Group, tree: CallTree, flow: DataFlow) -> bool:
    """Whether some instance is used several times by one caller, each use being fed by an earlier one."""
    used = {(tree.caller_path(row), tree.path[row]) for row in group.rows}
    return any(flow.inflow(caller, path).is_in_series for caller, path in used)


Uses = dict[int, dict[int, tuple[int, int]]]  # caller's row -> path -> least and most uses in one call of the caller


def _uses(group: Group, tree: CallTree, forwards: int) -> Uses:
    counts: dict[int, dict[int, int]] = {}
    for row in group.rows:
        by_path = counts.setdefault(tree.parent[row], {})
        by_path[tree.path[row]] = by_path.get(tree.path[row], 0) + tree.weight[row]
    return {
        caller: {
            path: _per_call(count, tree.weight[caller] if caller >= 0 else forwards) for path, count in by_path.items()
        }
        for caller, by_path in counts.items()
    }


def _per_call(count: int, caller_calls: int) -> tuple[int, int]:
    """Where only totals are known, the uses in one call of the caller lie around their mean."""
    return max(1, count // caller_calls), -(-count // caller_calls)


def _over_instances(group: Group, tree: CallTree, uses: Uses) -> list[BoxLoop]:
    counts = [len(by_path) for by_path in uses.values()]
    most, least = max(counts), min(counts)
    if group.kind is LoopKind.PARFOR:
        most, least = _touched_per_call(group, tree) or (most, least)
    if group.kind is None or (most == 1 and group.declared == 1):
        return []
    return [
        BoxLoop(
            kind=group.kind,
            count=most,
            least=least if least < most else None,
            of=group.declared if least < group.declared else None,
        )
    ]


def _touched_per_call(group: Group, tree: CallTree) -> tuple[int, int] | None:
    """Where calls of a caller are counted together: the most and the fewest siblings that one of them ran, on average.

    A router picks a sibling once per call, so the uses of all siblings over the calls of the caller are that average.
    """
    totals: dict[int, int] = {}
    for row in group.rows:
        totals[tree.parent[row]] = totals.get(tree.parent[row], 0) + tree.weight[row]
    calls = {caller: tree.weight[caller] for caller in totals if caller >= 0}
    is_router = all(tree.weight[row] <= calls.get(tree.parent[row], 0) for row in group.rows)
    if not is_router or max(calls.values()) == 1:
        return None
    means = [_per_call(total, calls.get(caller, 1)) for caller, total in totals.items()]
    return max(high for _, high in means), min(low for low, _ in means)


def _over_calls(group: Group, tree: CallTree, flow: DataFlow, uses: Uses) -> list[BoxLoop]:
    """Several uses of one instance by one caller; forwards of the whole model in turn, if no module called it."""
    most = max(high for by_path in uses.values() for _, high in by_path.values())
    least = min(low for by_path in uses.values() for low, _ in by_path.values())
    kind = LoopKind.PARFOR
    if OUTSIDE in uses:
        if flow.knowledge is Knowledge.NONE and flow.unseen_forwards is None:
            return []
        if are_uses_in_series(group, tree, flow):
            kind = LoopKind.FOR
    return [BoxLoop(kind=kind, count=most, least=least if least < most else None, over="calls")] if most > 1 else []


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
        self._contexts = LayerContexts(facts.graph)
        self._witnesses = OwnWitnesses(facts.graph)
        self._homes = dict(facts.parameters.by_path) if facts.parameters is not None else None
        self._numbers = count()
        self._collectives = collectives_by_call(facts.graph)
        self._stages = stage_names(facts.graph)
        self._stage_of_call = stage_of_calls(facts.graph) if facts.graph.calls is not None else None

    def box(self, group: Group) -> Box:
        """The box of a group and everything inside it, numbered outer before inner."""
        number = next(self._numbers)
        members, calls = self._members(group)
        weights = {} if group.is_split else self._weights(members)
        own = self._nothing() if group.is_split else self._own(group, weights)
        children = [self.box(child) for child in group.children]
        own_collectives = () if group.is_split else self._own_collectives(group)
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
            collectives=together([own_collectives, *(child.collectives for child in children)]),
            own_collectives=own_collectives,
            constructor_params=_shared_params(self._facts.graph, members),
            layer_context=self._contexts.of(members),
            inputs=self._tensors.inputs(group.rows, called),
            outputs=self._tensors.outputs(group.rows, called),
            members=tuple(members),
            member_calls=tuple(calls),
            children=tuple(children),
            arrows=tuple(self._arrows(group, children)),
            is_split=group.is_split,
            witness=None if group.is_split else partial(self._witnesses.of, calls=group.rows, weights=weights),
        )

    def _weights(self, members: list[str]) -> dict[str, int]:
        """Elements by module, of weights that no box before this one holds."""
        homes = self._homes or {}
        return {path: homes.pop(path) for path in members if path in homes}

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

    def _own(self, group: Group, weights: Mapping[str, int]) -> Figures:
        figures = self._facts.figures
        unpriced = _sum_at(figures.unpriced_ops, group.rows)
        flops = counted_or_unknown(_sum_at(figures.flops, group.rows), unpriced)
        return Figures(
            flops=flops,
            macs=macs_of(flops),
            bytes_moved=counted_or_unknown(_sum_at(figures.bytes_moved, group.rows), unpriced),
            parameters=None if self._homes is None else sum(weights.values()),
            activation_bytes=_sum_at(figures.activation_bytes, group.rows),
            unpriced_ops=unpriced,
        )

    def _own_collectives(self, group: Group) -> tuple[CollectiveGroup, ...]:
        if not self._collectives:
            return ()
        counts_by_row = (self._collectives[row] for row in group.rows if row in self._collectives)
        return together([_groups(counts) for counts in counts_by_row])

    def _nothing(self) -> Figures:
        """Zero where something is known at all: the parts of a box split by cost hold everything."""
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


def together(parts: Iterable[Sequence[CollectiveGroup]]) -> tuple[CollectiveGroup, ...]:
    """Equal collectives counted once, the most bytes first."""
    counts: dict[tuple[str, int, int], int] = {}
    for part in (part for listed in parts for part in listed):
        key = (part.kind, part.payload_bytes, part.ranks)
        counts[key] = counts.get(key, 0) + part.count
    ordered = sorted(counts.items(), key=lambda item: (-item[0][1] * item[1], item[0]))
    return tuple(
        CollectiveGroup(kind=kind, payload_bytes=size, ranks=ranks, count=number)
        for (kind, size, ranks), number in ordered
    )


def _groups(counts: Mapping[Collective, int]) -> list[CollectiveGroup]:
    return [
        CollectiveGroup(kind=str(key.kind), payload_bytes=key.payload_bytes, ranks=key.group.size, count=number)
        for key, number in counts.items()
    ]


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


# What an expert cannot know by itself: how many there are in its layer, and how many of them each token takes.
#
# An expert is built from its own sizes alone. The block around it, or the router in that block, keeps the two numbers
# under one of several names; they are read from there and kept apart from what the expert itself holds.

_MOST_CHILDREN = 16  # a block holds a router, experts and shared experts; a longer list is the experts themselves


class LayerContexts:
    """Looks the two numbers up; each block of experts is read once."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._of_block: dict[str, tuple[int, int] | None] = {}

    def of(self, members: Iterable[str]) -> Mapping[str, Any]:
        """`num_experts` and `top_k` of the layers that the members sit in, if they are experts and all layers agree."""
        boxes = {self._of_member(path) for path in members}
        if len(boxes) != 1:
            return {}
        numbers = boxes.pop()
        return {} if numbers is None else {"num_experts": numbers[0], "top_k": numbers[1]}

    def _of_member(self, path: str) -> tuple[int, int] | None:
        """Up from the module to the first one that stands in a block of experts, if that is an expert."""
        while path:
            above = path.rpartition(".")[0]
            numbers = self._block(above)
            if numbers is None and above and above not in self._graph.call_counts:  # a list, as `mlp.experts`
                numbers = self._block(above.rpartition(".")[0])
            if numbers is not None:
                return numbers if self._is_expert(path, above, numbers[0]) else None
            path = above
        return None

    def _is_expert(self, path: str, above: str, experts: int) -> bool:
        """Whether the module is one of that many siblings, or holds all experts stacked."""
        family = family_of(self._graph.module_types.get(path, ""), self._graph.constructor_params.get(path))
        if path.rpartition(".")[2].isdecimal():
            return len(self._graph.module_children.get(above, ())) == experts and family != "block"
        return family == "experts" and self._block(path) is None  # the block itself keeps the numbers

    def _block(self, path: str) -> tuple[int, int] | None:
        if path not in self._of_block:
            tables = [self._graph.constructor_params.get(path, {})]
            children = self._graph.module_children.get(path, ())
            tables += [self._graph.constructor_params.get(child, {}) for child in children[:_MOST_CHILDREN]]
            numbers = layer_experts(tables)
            siblings = self._graph.module_children.get(path.rpartition(".")[0], ())
            is_expert = path.rpartition(".")[2].isdecimal() and numbers is not None and len(siblings) == numbers[0]
            self._of_block[path] = None if is_expert else numbers
        return self._of_block[path]
