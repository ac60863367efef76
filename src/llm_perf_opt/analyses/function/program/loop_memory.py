"""Which memory belongs to which block of a loop: what the block makes, and what the model is given for it.

A model that is given a list of images, one for each sequence, has memory for each before the loop begins. The list may
stand there unread, as in a decode step: then the loop has no ops, and still as many blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from llm_perf_opt.analyses.function.program.alignment import storages_of
from llm_perf_opt.analyses.function.program.loops import Loop, Repeats
from llm_perf_opt.analyses.memory.live_memory import MADE_ORIGINS
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import call_tensors, calls_of, ops_of, tensor_offsets

_EXTERNAL = "external"
GIVEN_ORIGINS = frozenset({"input", _EXTERNAL})
_LARGEST_UNIT = 8  # tensors that a list holds for each block


class Irregular(Exception):
    """A loop whose blocks are not all alike."""


class Home(NamedTuple):
    """The loop and the block that a block of memory belongs to, and which of that block's it is."""

    loop: int
    block: int
    place: int


def homes_of(graph: CallGraph, loops: Sequence[Loop]) -> dict[int, Home]:
    """Row of memory -> where it belongs, for all that belongs to a block."""
    storages = storages_of(graph)
    found: dict[int, tuple[int, int]] = {}
    for number, loop in enumerate(loops):
        found |= {row: (number, block) for block, rows in enumerate(loop.given) for row in rows}
    starts = sorted((loop.first_op, number) for number, loop in enumerate(loops) if loop.length)
    for row, (origin, born) in enumerate(zip(storages.origin, storages.born_op, strict=True)):
        if origin in MADE_ORIGINS:
            number = next((number for first, number in reversed(starts) if first <= born), -1)
            if number >= 0 and born < loops[number].end_op:
                found[row] = number, (born - loops[number].first_op) // loops[number].length
    seen: Counter[tuple[int, int]] = Counter()
    homes: dict[int, Home] = {}
    for row, home in found.items():  # what is given in the order of its list, what is made in that of its rows
        homes[row] = Home(*home, seen[home])
        seen[home] += 1
    for number, loop in enumerate(loops):
        if len({seen[number, block] for block in range(loop.blocks)}) > 1:
            raise Irregular("blocks of a loop that make more memory than others")
    return homes


def with_given(graph: CallGraph, loops: Sequence[Loop], wanted: Sequence[Repeats]) -> tuple[Loop, ...]:
    """The loops with what the model is given for their blocks, and those that are but lists."""
    result = list(loops)
    used = _used(graph)
    for repeats in wanted:
        if repeats.routed is not None or repeats.times < 2:
            continue
        same = [number for number, loop in enumerate(result) if loop.count == repeats.count and loop.length]
        rows = _listed(graph, repeats.times, [result[number] for number in same], used)
        if rows and same:
            result[same[0]] = replace(result[same[0]], given=rows)
        elif rows:
            calls = len(calls_of(graph).path)
            result.append(
                Loop(
                    count=repeats.count,
                    blocks=repeats.times,
                    first_op=0,
                    length=0,
                    first_call=calls,
                    calls=0,
                    given=rows,
                )
            )
    return tuple(_with_constants(graph, loop, used) for loop in result)


def _with_constants(graph: CallGraph, loop: Loop, used: Mapping[int, Sequence[int]]) -> Loop:
    """The loop with tensors that come from outside the model and are used in one block each: numbers in its code."""
    if loop.routed is not None or not loop.length:
        return loop
    origins, taken = storages_of(graph).origin, {row for block in loop.given for row in block}
    found: list[list[int]] = [[] for _ in range(loop.blocks)]
    for row, ops in sorted(used.items()):
        blocks = {(op - loop.first_op) // loop.length for op in ops}
        if origins[row] == _EXTERNAL and row not in taken and len(blocks) == 1 and 0 <= min(blocks) < loop.blocks:
            found[blocks.pop()].append(row)
    if not found[0] or len({len(rows) for rows in found}) > 1:
        return loop
    given = loop.given or ((),) * loop.blocks
    return replace(loop, given=tuple((*one, *rows) for one, rows in zip(given, found, strict=True)))


def _used(graph: CallGraph) -> Mapping[int, Sequence[int]]:
    """Row of given memory -> the ops that use it."""
    ops, storages = ops_of(graph), storages_of(graph)
    given = {row for row, origin in enumerate(storages.origin) if origin in GIVEN_ORIGINS}
    starts, _ = tensor_offsets(graph)
    found: dict[int, list[int]] = {}
    for row in range(len(ops.kind)):
        for storage in given.intersection(ops.input_storages[starts[row] : starts[row + 1]]):
            found.setdefault(storage, []).append(row)
    return found


def _listed(
    graph: CallGraph, times: int, loops: Sequence[Loop], used: Mapping[int, Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """Memory of a list that the model is given, by block; empty: there is no such list."""
    origins = storages_of(graph).origin
    for root in (row for row, parent in enumerate(calls_of(graph).parent) if parent < 0):
        entries = list(call_tensors(graph, root, "input"))
        for unit in range(min(_LARGEST_UNIT, len(entries) // times), 0, -1):
            for start in range(len(entries) - unit * times + 1):
                part = entries[start : start + unit * times]
                rows = [row for _, row in part]
                is_given = all(row >= 0 and origins[row] in GIVEN_ORIGINS for row in rows) and len(set(rows)) == len(
                    rows
                )
                is_periodic = all(one == other for (one, _), (other, _) in zip(part, part[unit:], strict=False))
                if (
                    is_given
                    and is_periodic
                    and all(_fits(used.get(r, ()), i // unit, loops) for i, r in enumerate(rows))
                ):
                    return tuple(tuple(rows[block * unit : (block + 1) * unit]) for block in range(times))
    return ()


def _fits(used: Sequence[int], block: int, loops: Sequence[Loop]) -> bool:
    """Whether memory is used in one block of the loops alone, whatever uses it outside; of lists, in none."""
    if not loops:
        return not used
    inside = [(loop, row) for loop in loops for row in used if loop.first_op <= row < loop.end_op]
    return all((row - loop.first_op) // loop.length == block for loop, row in inside)
