"""Loops of the model's Python code: a block of ops that runs once for each sequence, step of a scan, or expert.

A loop is found in one trace: ops that are the same, in calls of the same modules, over and over, as often as the
workload says. How often it runs elsewhere is a form.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.sweeps.function.fitting import Routed
from llm_perf_opt.sweeps.function.form import Form, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import signature

_SHORT_BLOCK = 64  # ops: every length up to here is tried
_LONG_BLOCKS = 8  # lengths beyond it that are tried, the most likely first
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

Keys = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`blocks` blocks of `length` ops and `calls` module calls, one after the other, in one trace.

    `count` is how many there are at a point. With `routed` each block is an expert's, and those without rows do not
    run; else all blocks call the same modules. A loop of no ops is a list that the model is given and does not read.
    """

    count: Form
    blocks: int
    first_op: int
    length: int
    first_call: int
    calls: int
    routed: Routed | None = None
    given: tuple[tuple[int, ...], ...] = ()  # per block the rows of memory that the model is given for it

    @property
    def end_op(self) -> int:
        """The first op after the loop."""
        return self.first_op + self.length * self.blocks

    @property
    def end_call(self) -> int:
        """The first call after the loop."""
        return self.first_call + self.calls * self.blocks

    def overlaps(self, other: Loop) -> bool:
        """Whether an op is in both."""
        return self.first_op < other.end_op and other.first_op < self.end_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Something that may run once for each of `times` things, of which there are `count` at a point."""

    count: Form
    times: int
    routed: Routed | None = None


def expert_repeats(routed: Routed) -> Repeats:
    """A block for each expert that has rows."""
    touched = Step(StepKind.TOUCHED, routed.tokens, (routed.chosen, routed.experts))
    return Repeats(count=Form.atom(touched), times=routed.experts, routed=routed)


def find_loops(graph: CallGraph, wanted: Sequence[Repeats]) -> tuple[Loop, ...]:
    """The loops of a trace in which every block runs, in order; of those that overlap the longest."""
    candidates: list[Loop] = []
    for repeats in wanted:
        # Each expert is a module of its own, `experts.0`, `experts.1`: numbers in paths do not tell blocks apart.
        keys = _keys(graph, with_numbers=repeats.routed is None)
        for start, length, slack in _runs(keys, repeats.times, is_long=repeats.routed is None):
            places = (_placed(graph, repeats, start + shift, length) for shift in range(slack + 1))
            loop = next((place for place in places if place is not None), None)
            if loop is not None:
                candidates.append(loop)
    loops: list[Loop] = []
    # Most ops first. Of two loops over the same ops the one of shorter blocks: the other has two rounds in a block.
    for loop in sorted(candidates, key=lambda candidate: (candidate.first_op - candidate.end_op, candidate.length)):
        if not any(loop.overlaps(other) for other in loops):
            loops.append(loop)
    return tuple(sorted(loops, key=lambda loop: loop.first_op))


def _keys(graph: CallGraph, *, with_numbers: bool) -> Keys:
    """Per op a number, equal for ops that may be the same in two blocks: all but sizes, and numbers in paths."""
    numbers: dict[object, int] = {}
    kinds = [numbers.setdefault(signature(kind), len(numbers)) for kind in graph.op_kinds]
    paths = list(graph.paths) if with_numbers else [_NUMBER.sub("*", path) for path in graph.paths]
    calls = [paths[row] for row in calls_of(graph).path] + [""]
    ops = ops_of(graph)
    pairs = zip(ops.kind, ops.call, strict=True)
    return np.asarray([numbers.setdefault((kinds[kind], calls[call]), len(numbers)) for kind, call in pairs], np.int64)


def _runs(keys: Keys, times: int, *, is_long: bool) -> Iterator[tuple[int, int, int]]:
    """Where a block is repeated just this many times, its length, and by how many ops the block may begin later.

    The block of an expert is short: 32 layers are eight times four, and no loop over eight experts.
    """
    if times < 2:
        return
    short = range(1, min(_SHORT_BLOCK, len(keys) // times) + 1)
    for length in (*short, *(_long_lengths(keys, times) if is_long else ())):
        # Ops equal to those one block later: `times` blocks make a run of `times - 1` of them. A run that is longer, by
        # less than a block, does not say with which op the block begins.
        same = np.concatenate(([0], (keys[:-length] == keys[length:]).astype(np.int8), [0]))
        edges = np.flatnonzero(np.diff(same))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            slack = end - begin - (times - 1) * length
            if 0 <= slack < length:
                yield begin, length, slack


def _long_lengths(keys: Keys, times: int) -> list[int]:
    """Lengths of long blocks, from how far apart ops lie that occur as often as there are blocks, or twice, ..."""
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    lengths: Counter[int] = Counter()
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        per_block, rest = divmod(count, times)
        if per_block and not rest:
            rows = order[start : start + count]
            gaps = rows[per_block:] - rows[:-per_block]  # from an op to the same op of the next block
            if (gaps == gaps[0]).all() and gaps[0] > _SHORT_BLOCK:
                lengths[int(gaps[0])] += per_block
    return [length for length, _ in lengths.most_common(_LONG_BLOCKS)]


def _placed(graph: CallGraph, repeats: Repeats, start: int, length: int) -> Loop | None:
    """The loop with the calls of its blocks; None where a call begins in one block and ends in another."""
    calls, times = calls_of(graph), repeats.times
    end = start + length * times
    first, ends = np.asarray(calls.first_op), np.asarray(calls.end_op)
    # Calls without ops (`first == ends`) could be on either side of an edge: `_with_calls` places them.
    inside = np.flatnonzero((first >= start) & (ends <= end) & (first < ends))
    crossing = (first < end) & (ends > start) & ~((first <= start) & (ends >= end)) & (first < ends)
    crossing[inside] = False
    if crossing.any():
        return None
    blocks = (first[inside] - start) // length
    if (blocks != (ends[inside] - 1 - start) // length).any():
        return None
    place = Loop(
        count=repeats.count,
        blocks=times,
        first_op=start,
        length=length,
        first_call=len(first),
        calls=0,
        routed=repeats.routed,
    )
    if not len(inside):
        return place
    heads = [int(rows[0]) if len(rows := inside[blocks == block]) else -1 for block in range(times)]
    period = heads[1] - heads[0]
    if any(b - a != period for a, b in pairwise(heads)):
        return None
    return _with_calls(graph, place, heads[0], period)


def _with_calls(graph: CallGraph, loop: Loop, head: int, period: int) -> Loop | None:
    """Calls without ops stand at the edges of blocks: as many belong to the first one as to all."""
    calls, has_numbers = calls_of(graph), loop.routed is None
    paths = list(graph.paths) if has_numbers else [_NUMBER.sub("*", path) for path in graph.paths]
    for before in range(min(period, head + 1)):
        first = head - before
        rows = range(first, first + period * loop.blocks)
        if rows.stop > len(calls.path) or (before and calls.first_op[first] != loop.first_op):
            continue
        same = all(paths[calls.path[row]] == paths[calls.path[row + period]] for row in rows[:-period])
        if same and all(_stands(calls.parent[row], row, first, period, rows) for row in rows):
            return replace(loop, first_call=first, calls=period)
    return None


def _stands(parent: int, row: int, first: int, period: int, rows: range) -> bool:
    """Whether a call's parent is of the same block, or outside."""
    return parent not in rows or (parent - first) // period == (row - first) // period
