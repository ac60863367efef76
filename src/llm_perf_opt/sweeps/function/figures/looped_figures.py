"""Figures of a program with loops, as forms.

Sums are asked of the analyses at rebuilt points, with the number of blocks among the terms. The peak is found in a
program of a few blocks: what each block leaves behind is there as often as the loop has run before its last block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.costs.memory.live_memory import LIVE_ORIGINS
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function.columns import Evaluation
from llm_perf_opt.sweeps.function.figures.costs import (
    CostForms,
    FigureForms,
    OpFitting,
    Region,
    generic_points,
    live_curves,
    undominated,
)
from llm_perf_opt.sweeps.function.figures.rebuilding import Rebuilt
from llm_perf_opt.sweeps.function.form import Form, Point, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import Parting, storages_of
from llm_perf_opt.sweeps.function.program.loop_memory import Row
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule, Program, ProgramShape
from llm_perf_opt.sweeps.function.program.sized import Numbers, SizedKind
from llm_perf_opt.sweeps.function.program.unfolding import Unfolded

_MOST_BLOCKS = 24  # of a loop, at points that are rebuilt to find forms
_SHOWN_BLOCKS = 5  # two at the start, two of the middle, and the last
_MIDDLE = 2  # the block that stands for all but the last of the middle
_POINTS = 400  # at which the largest of many curves is looked for
_STEPS = frozenset({StepKind.BITS, StepKind.MAX})


def small_region(program: Program, region: Region) -> Region:
    """The part of a region in which loops run few times; forms that hold there hold everywhere, and are checked."""
    repeated = {atom for loop in program.loops if loop.routed is None for atom in loop.count.atoms()}
    return {
        name: (low, min(high, max(low, 2) + _MOST_BLOCKS)) if name in repeated else (low, high)
        for name, (low, high) in region.items()
    }


def looped_figures(program: Program, region: Region) -> FigureForms:
    """The figures of a program with loops in a region in which it runs."""
    apart = _stepped_ops(program, region)
    names = {program.kinds[kind].kind.name for _, kind in apart}
    found = Rebuilt(program, region, small_region(program, region)).fit_at(ProgramCosts(program, names).at)
    if found.by_point:
        text = f"{', '.join(sorted({figure for _, figure in found.by_point}))}: no polynomial of the workload"
        raise NoRule(Parting(what=NO_RULE, op=None, text=text))
    forms = {key: form or Form() for key, form in found.forms.items()}
    stages = dict.fromkeys(stage for stage, _ in forms)
    by_stage = {stage: CostForms(**{name: forms[stage, name] for name in SUMS}) for stage in stages}
    for (stage, _), cost in apart.items():
        by_stage[stage] = by_stage.get(stage, CostForms()) + cost
    return FigureForms(by_stage=by_stage, peak_bytes=_peak_forms(program, region))


def _stepped_ops(program: Program, region: Region) -> dict[tuple[str, int], CostForms]:
    """Stage and kind -> the figures of ops outside all loops whose price is no polynomial: sorts, broadcasts."""
    looped = {row for loop in program.loops for row in range(loop.first_op, loop.end_op)}
    ops, stages = ops_of(program.skeleton), stage_of_ops(program.skeleton)
    names, fitting = stage_names(program.skeleton), OpFitting(region)
    counts = Counter((stages[row], kind) for row, kind in enumerate(ops.kind) if row not in looped)
    inside = {program.kinds[ops.kind[row]].kind.name for row in looped}
    found: dict[tuple[str, int], CostForms] = {}
    for (stage, number), count in counts.items():
        kind = program.kinds[number]
        if kind.kind.name in inside or any(form.varies_by_block for form in kind.forms()):
            continue
        cost = fitting.cost(kind)
        if any(isinstance(atom, Step) and atom.kind in _STEPS for atom in cost.vector_flops.atoms()):
            found[names[stage], number] = cost.times(count)
    apart = {program.kinds[number].kind.name for _, number in found}
    for (stage, number), count in counts.items():  # all ops of such a name are left out of the sums
        if program.kinds[number].kind.name in apart and (names[stage], number) not in found:
            found[names[stage], number] = fitting.cost(program.kinds[number]).times(count)
    return found


def _peak_forms(program: Program, region: Region) -> tuple[Form, ...]:
    """The forms of which the largest is the most bytes alive during one op."""
    counts = tuple(loop.blocks if loop.routed is not None else _SHOWN_BLOCKS for loop in program.loops)
    shape, rows = program.shape(counts), program.rows(counts)
    curves = live_curves(_lives(program, shape, rows), len(ops_of(shape.graph).kind))
    largest = _largest([Form(curve) for curve in curves], region)
    return undominated([form.terms for form in largest])


def _lives(program: Program, shape: ProgramShape, rows: Unfolded) -> Iterator[tuple[Form, int, int]]:
    """How long memory lives in a program of a few blocks, with what further middle blocks leave behind."""
    columns = storages_of(shape.graph)
    lives = zip(columns.origin, columns.born_op, columns.freed_op, shape.block_bytes, rows.storages, strict=True)
    for origin, born, freed, size, row in lives:
        if origin not in LIVE_ORIGINS:
            continue
        yield Form.of(size), born, freed
        begin = _copies_from(row, program.loops, rows.loop_ops, born, freed)
        if begin is not None:
            yield Form.of(size) * (program.loops[row.loop].count - _SHOWN_BLOCKS), begin, freed


def _copies_from(row: Row, loops: Sequence[Loop], first_ops: Sequence[int], born: int, freed: int) -> int | None:
    """From which op on there are as many copies of a middle block's memory as there are further middle blocks.

    None where there is one at a time: what a block makes and the next one frees.
    """
    if row.loop < 0 or loops[row.loop].routed is not None or row.block != _MIDDLE:
        return None
    loop, first = loops[row.loop], first_ops[row.loop]
    if born < first or not loop.length:
        return born
    last_middle = first + (_SHOWN_BLOCKS - 2) * loop.length
    return last_middle if freed > last_middle + loop.length else None


def _largest(curves: Sequence[Form], region: Region) -> tuple[Form, ...]:
    """Of many curves those that are the largest somewhere: experts have as many curves as there are experts."""
    points = generic_points(region, _POINTS)
    at = Evaluation({name: np.array([point[name] for point in points], dtype=np.int64) for name in region})
    columns = at.table(curves)
    is_largest = columns == columns.max(axis=0)
    kept: list[Form] = []
    covered = np.zeros(len(points), dtype=bool)
    for number in np.argsort(-is_largest.sum(axis=1), kind="stable").tolist():
        if (is_largest[number] & ~covered).any():
            kept.append(curves[number])
            covered |= is_largest[number]
    return tuple(kept)


# What a program costs at points, by stage, without the call graphs of the points.
#
# The ops of a block differ from those of another, and the ops at a point from those at another, in their sizes alone.
# An op with sizes that were seen before is not priced again.

SUMS = ("flops", "vector_flops", "bytes_moved", "launches", "ops", "unpriced_ops")
_Cost = tuple[int, int, int, int, int, int]  # of one run, in the order of `SUMS`


class ProgramCosts:
    """The costs of a program; ops of the names in `without` are left out."""

    def __init__(self, program: Program, without: Collection[str] = ()) -> None:
        self._program, self._without = program, without
        self._counts: dict[tuple[int, ...], list[tuple[str, SizedKind, int]]] = {}
        self._leaves: dict[SizedKind, tuple[Any, ...]] = {}
        self._costs: dict[tuple[OpKind, tuple[Any, ...]], _Cost] = {}

    def at(self, point: Point) -> Mapping[tuple[str, str], int | None]:
        """(Stage, figure) -> what the code costs as written, as an analysis of the point's graph would say."""
        number, totals = Numbers(point), dict[str, list[int]]()
        for stage, kind, count in self._rows(tuple(loop.count.at(point) for loop in self._program.loops)):
            total = totals.setdefault(stage, [0] * len(SUMS))
            for place, one in enumerate(self._cost(kind, number)):
                total[place] += one * count
        return {
            (stage, name): value for stage, total in totals.items() for name, value in zip(SUMS, total, strict=True)
        }

    def _rows(self, counts: tuple[int, ...]) -> list[tuple[str, SizedKind, int]]:
        """The stage of an op, the op, and how often it runs there."""
        if counts not in self._counts:
            kinds = self._program.shape(counts).kinds
            rows = ((stage, kinds[kind], count) for (stage, kind), count in self._program.stage_counts(counts).items())
            self._counts[counts] = [row for row in rows if row[1].kind.name not in self._without]
        return self._counts[counts]

    def _cost(self, kind: SizedKind, number: Numbers) -> _Cost:
        if kind not in self._leaves:
            self._leaves[kind] = kind.leaves()
        # What differs between ops of one kind at a sample, in other blocks and at other points, are the leaves.
        key = kind.kind, number.leaves(self._leaves[kind])
        found = self._costs.get(key)
        if found is None:
            op = number.kind(kind)
            cost, launches = price(op), len(kernels_of(op))
            found = (
                (0, 0, 0, launches, 1, 1)
                if cost is None
                else (cost.flops, cost.vector_flops, cost.bytes_moved, launches, 1, 0)
            )
            self._costs[key] = found
        return found
