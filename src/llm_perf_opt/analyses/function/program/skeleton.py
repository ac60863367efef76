"""Which of several traces of one phase stands for all of them, and which of its ops are a loop.

The fullest trace is the skeleton. What it repeats is a loop only if the other traces repeat it as often as their
workload says: so many more sequences, tokens or chunks must be so many more ops.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from llm_perf_opt.analyses.function.fitting import BATCH, Fitter, Routed
from llm_perf_opt.analyses.function.form import Form, Point, Step, StepKind
from llm_perf_opt.analyses.function.program.alignment import same_program
from llm_perf_opt.analyses.function.program.assembly import folded
from llm_perf_opt.analyses.function.program.loop_lists import CUTS
from llm_perf_opt.analyses.function.program.loop_memory import Irregular, with_given
from llm_perf_opt.analyses.function.program.loops import Loop, Repeats, expert_repeats, find_loops
from llm_perf_opt.analyses.function.program.program import NoRule
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of
from llm_perf_opt.ops.grouped_experts import tokens_for_all, touched_experts
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role

_BLOCKS = 4  # of a loop whose blocks are all alike: the first two, one of the middle, the last


def skeleton_of(graphs: Sequence[CallGraph], fitter: Fitter) -> tuple[CallGraph, tuple[Loop, ...]]:
    """The sample that has most ops, and its loops; a trace in which no loop varies has only those of experts."""
    parting = same_program(graphs)
    sizes = [len(ops_of(one).kind) for one in graphs]
    number = 0 if parting is None else max(range(len(graphs)), key=sizes.__getitem__)
    graph, point = graphs[number], fitter.points[number]
    experts = [expert_repeats(routed) for routed in fitter.routed]
    lists = list[Repeats]()
    loops = find_loops(graph, experts)
    if parting is not None and len(set(sizes)) > 1:
        fuller = _fuller(point, fitter)
        if fuller is not None:
            raise NoRule(parting, wanted=fuller)
        lists = [Repeats(count=Form.atom(name), times=point[name]) for name in fitter.variables]
        loops = _with_scans(graph, experts, fitter, sizes, point)
    loops = with_given(graph, loops, lists)
    try:
        return folded(graph, loops, _BLOCKS)
    except Irregular as refusal:
        if parting is None:
            return graph, ()  # what looked like experts in a loop is none
        raise NoRule(parting) from refusal


def _with_scans(
    graph: CallGraph, experts: Sequence[Repeats], fitter: Fitter, sizes: Sequence[int], point: Point
) -> tuple[Loop, ...]:
    """The loops of experts, and those over one variable that explain how many ops the samples have; else any."""
    for count in _counts(fitter):
        ops_per_block = _slope(count, sizes, fitter.points)
        if ops_per_block is None:
            continue
        times = (1, *_list_lengths(graph, count.at(point)))
        wanted = [one for each in times for one in _repeats(count * each, point)]
        loops = find_loops(graph, [*experts, *wanted])
        scans = _of_length([loop for loop in loops if loop.routed is None], count, ops_per_block)
        if scans:
            return tuple(loop for loop in loops if loop.routed is not None or loop in scans)
    names = [name for name in fitter.variables if _may_loop_over(name, sizes, fitter.points)]
    return find_loops(graph, [*experts, *(one for name in names for one in _repeats(Form.atom(name), point))])


def _counts(fitter: Fitter) -> Iterator[Form]:
    """How often something may run: once for each sequence, token or chunk."""
    for name in fitter.variables:
        plain = Form.atom(name)
        yield plain
        if name != BATCH:
            yield from (Form.atom(Step(StepKind.CEIL, plain, (chunk,))) for chunk in dict.fromkeys(fitter.chunks))


def _list_lengths(graph: CallGraph, count: int) -> list[int]:
    """How many windows each of something has: an op cuts a tensor into as many parts."""
    cuts = {len(kind.outputs) for kind in graph.op_kinds if kind.name.startswith(CUTS) and len(kind.outputs) > count}
    return sorted(parts // count for parts in cuts if not parts % count)


def _repeats(count: Form, point: Point) -> tuple[Repeats, Repeats]:
    """Once for each, or for each but one: a scan whose first step has another type."""
    times = count.at(point)
    return Repeats(count=count, times=times), Repeats(count=count - 1, times=times - 1)


def _slope(count: Form, sizes: Sequence[int], points: Sequence[Point]) -> int | None:
    """How many ops one more block is; None where it is not as many everywhere."""
    seen = sorted({(count.at(point), size) for size, point in zip(sizes, points, strict=True)})
    slopes = {(y - x) / (b - a) if b > a else 0 for (a, x), (b, y) in pairwise(seen)}
    slope = slopes.pop() if len(slopes) == 1 else 0
    return int(slope) if slope > 0 and slope == int(slope) else None


def _of_length(loops: Sequence[Loop], count: Form, ops: int) -> list[Loop]:
    """Those with most ops for one of what is counted, which together are just so many; nothing where there are none."""
    (of,) = count.terms
    lengths = [(loop.length * loop.count.terms.get(of, 0), number) for number, loop in enumerate(loops)]
    taken: list[Loop] = []
    for length, number in sorted(lengths, reverse=True):
        if length <= ops:
            taken.append(loops[number])
            ops -= length
    return [] if ops else taken


def _may_loop_over(name: str, sizes: Sequence[int], points: Sequence[Point]) -> bool:
    """Whether no two samples that differ in this variable alone have as many ops as each other."""
    counts: dict[tuple[int, ...], list[int]] = {}
    for size, point in zip(sizes, points, strict=True):
        others = tuple(value for key, value in sorted(point.items()) if key != name)
        counts.setdefault(others, []).append(size)
    return all(len(set(one)) == len(one) for one in counts.values())


def _fuller(point: Point, fitter: Fitter) -> Point | None:
    """A point at which every expert has rows; None where that is so already."""
    for routed in fitter.routed:
        if touched_experts(routed.experts, routed.chosen, routed.tokens.at(point)) < routed.experts:
            return _with_tokens_for_all(point, routed)
    return None


def _with_tokens_for_all(point: Point, routed: Routed) -> Point:
    name, enough = _longest(routed.tokens), tokens_for_all(routed.experts, routed.chosen)
    more = range(point[name], 2**20)
    return {**point, name: more[bisect_left(more, enough, key=lambda one: routed.tokens.at({**point, name: one}))]}


def _longest(tokens: Form) -> str:
    """The variable that is raised to have more tokens: a length, if there is one."""
    names = [atom for atom in tokens.atoms() if isinstance(atom, str)]
    return next((name for name in names if name != BATCH), BATCH)


def routers(graphs: Sequence[CallGraph], fitter: Fitter) -> tuple[Routed, ...]:
    """Where rows choose experts: the best `chosen` of `experts` scores for each of so many rows."""
    found = [_choices(graph) for graph in graphs]
    result: list[Routed] = []
    for chosen, experts in found[0]:
        rows = [one.get((chosen, experts), set()) for one in found]
        if any(len(one) != 1 for one in rows):
            continue
        tokens = fitter.dimension(tuple(next(iter(one)) for one in rows))
        if tokens is not None and tokens.constant is None:
            result.append(Routed(tokens=tokens, chosen=chosen, experts=experts))
    return tuple(result)


def _choices(graph: CallGraph) -> dict[tuple[int, int], set[int]]:
    """How many of how many are chosen -> for how many rows."""
    found: dict[tuple[int, int], set[int]] = {}
    for kind in graph.op_kinds:
        if op_role(kind) is OpRole.CHOICE and kind.outputs and kind.outputs[0].shape and len(kind.inputs[0].shape) > 1:
            chosen, experts = kind.outputs[0].shape[-1], kind.inputs[0].shape[-1]
            if 0 < chosen < experts:
                found.setdefault((chosen, experts), set()).add(math.prod(kind.inputs[0].shape[:-1]))
    return found
