"""Any integer that an analysis works out of a call graph, as a form: asked at rebuilt points, fitted, and checked.

A rebuilt graph costs milliseconds and no trace. So there are always more points than unknowns, and those left over
must agree.

Figures of a program with loops: sums are asked of the analyses at rebuilt points, with the number of blocks among the
terms. The peak is found in a program of a few blocks: what each block leaves behind is there as often as the loop has
run before its last block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.costs.memory.live_memory import LIVE_ORIGINS
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import kernels_of, op_role, price
from llm_perf_opt.sweeps.function.figures.costs import (
    CHECKS,
    CostForms,
    FigureForms,
    OpFitting,
    Region,
    basis_of,
    elements_of,
    generic_points,
    live_curves,
    undominated,
)
from llm_perf_opt.sweeps.function.fitting import BATCH, DenseFitter
from llm_perf_opt.sweeps.function.form import Evaluation, Form, Point, Step, StepKind
from llm_perf_opt.sweeps.function.program.alignment import Parting, storages_of
from llm_perf_opt.sweeps.function.program.loop_memory import Row
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule, Program, ProgramShape
from llm_perf_opt.sweeps.function.program.sized import Numbers, SizedKind
from llm_perf_opt.sweeps.function.program.unfolding import Unfolded

_MOST_STEPS = 4  # in one basis
_FEW_TOKENS = 8

_OWN = frozenset({StepKind.CEIL, StepKind.TOUCHED})
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[K]):
    """Figures by name: a form each, or None where a figure is unknown at every point.

    `by_point` are figures that no form gives: they have to be asked at each point.
    """

    forms: Mapping[K, Form | None]
    by_point: frozenset[K]


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """The graphs of a program at points of a region, each rebuilt once.

    Points are taken from `sampled`, the part of the region in which graphs are small, and its far corner is a check.
    """

    program: Program
    region: Region
    sampled: Region
    _graphs: dict[tuple[int, ...], CallGraph] = field(default_factory=dict, init=False)
    _fitters: dict[tuple[Step, ...], tuple[list[Point], DenseFitter]] = field(default_factory=dict, init=False)

    def graph(self, point: Point) -> CallGraph:
        """The graph of a point, without the tensors that modules saw."""
        key = tuple(point[name] for name in self.region)
        if key not in self._graphs:
            self._graphs[key] = self.program.graph_at(point, with_observations=False)
        return self._graphs[key]

    def fit(self, ask: Callable[[CallGraph], Mapping[K, int | None]]) -> Fitted[K]:
        """Every figure that `ask` finds in a graph as a form over the simplest basis that gives it."""
        return self.fit_at(lambda point: ask(self.graph(point)))

    def fit_at(self, ask: Callable[[Point], Mapping[K, int | None]]) -> Fitted[K]:
        """Every figure that `ask` finds at a point as a form over the simplest basis that gives it.

        A figure that is missing at some points is 0 there.
        """
        known: dict[tuple[int, ...], Mapping[K, int | None]] = {}
        forms: dict[K, Form | None] = {}
        left: dict[K, None] | None = None
        for points, fitter in self.bases():
            rows = []
            for point in points:
                key = tuple(point[name] for name in self.region)
                known[key] = known[key] if key in known else ask(point)
                rows.append(known[key])
            left = dict.fromkeys(key for row in rows for key in row) if left is None else left
            fits = {key: _fitted([row.get(key, 0) for row in rows], fitter) for key in left}
            forms.update((key, form) for key, (is_it, form) in fits.items() if is_it)
            left = dict.fromkeys(key for key, (is_it, _) in fits.items() if not is_it)
            if not left:
                break
        return Fitted(forms, frozenset(left or ()))

    def bases(self) -> Iterator[tuple[list[Point], DenseFitter]]:
        """The points and the fitter of each basis, plain polynomials first."""
        own = tuple(dict.fromkeys(_own_steps(self.program)))[:_MOST_STEPS]
        tables = tuple(self._inside(_table_steps(self.program)))[:_MOST_STEPS]
        yield self._basis(())
        shares = (*own, *dict.fromkeys(_share_steps(self.program)))
        for steps in dict.fromkeys((own, shares, tables, (*own, *tables))):
            if steps:
                yield self._basis(steps)
        for offset in (0, -1, 1):  # the newest token of a window may or may not be among those that a step finds
            windows = tuple(self._inside(self._window_steps(offset)))[:_MOST_STEPS]
            if windows:
                yield self._basis((*own, *tables, *windows))

    def _basis(self, steps: tuple[Step, ...]) -> tuple[list[Point], DenseFitter]:
        if steps not in self._fitters:
            monomials = basis_of(self.region, steps)
            far = {name: high for name, (_, high) in self.region.items()}
            points = [*generic_points(self.sampled, len(monomials) + CHECKS), *self._around(steps), far]
            self._fitters[steps] = points, DenseFitter(monomials, points)
        return self._fitters[steps]

    def _inside(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Those that begin somewhere in the region."""
        low, high = ({name: ends[side] for name, ends in self.region.items()} for side in (0, 1))
        return (s for s in dict.fromkeys(steps) if s.of.at(low) < s.constants[0] < s.of.at(high))

    def _around(self, steps: Sequence[Step]) -> Iterator[Point]:
        """Points on both sides of where a step begins."""
        low, high = ({name: ends[side] for name, ends in self.sampled.items()} for side in (0, 1))
        if any(step.kind is StepKind.TOUCHED for step in steps):  # few tokens leave experts without rows
            for name, (start, stop) in self.sampled.items():
                yield from ({**low, name: value} for value in range(start, min(stop, start + _FEW_TOKENS) + 1))
        for step in (step for step in steps if step.kind is StepKind.MAX):
            for name, rest in ((name, rest) for name in self.region if name != BATCH for rest in (low, high)):
                start, stop = self.region[name]
                inside = range(start, stop + 1)
                first = bisect_left(inside, step.constants[0], key=lambda x: step.of.at({**rest, name: x}))
                for value in range(max(start, start + first - 2), min(stop, start + first + 2) + 1):
                    yield {**rest, name: value}

    def _window_steps(self, offset: int) -> Iterator[Step]:
        """Where a sequence becomes longer than what a query sees."""
        largest = {name: high for name, (_, high) in self.region.items()}
        spans = [site.span for site in anatomy_of(self.graph(largest)).attentions]
        limits = {limit for span in spans for limit in (span.window, span.chosen) if limit is not None}
        lengths = [Form.atom(name) for name in self.region if name != BATCH]
        return (Step(StepKind.MAX, length, (limit + offset,)) for limit in sorted(limits) for length in lengths)


def _table_steps(program: Program) -> Iterator[Step]:
    """Where a lookup has as many rows as its table: from there on it may read all of it, and no more."""
    for kind in program.kinds:
        if op_role(kind.kind) is OpRole.LOOKUP and len(kind.inputs) > 1:
            rows, index = kind.inputs[0].shape[0], elements_of(kind.inputs[1])
            if isinstance(rows, int) and index.constant is None:
                yield Step(StepKind.MAX, index, (rows,))


def _own_steps(program: Program) -> Iterator[Step]:
    """Chunks in which the code cuts a sequence, experts that get rows, and how often loops run."""
    forms = chain((loop.count for loop in program.loops), (form for kind in program.kinds for form in kind.forms()))
    atoms = (atom for form in forms for atom in form.atoms())
    return (atom for atom in atoms if isinstance(atom, Step) and atom.kind in _OWN)


def _share_steps(program: Program) -> Iterator[Step]:
    """The most rows that one expert of a loop has: the first one's."""
    for routed in (loop.routed for loop in program.loops):
        if routed is not None:
            yield Step(StepKind.SHARE, routed.tokens, (routed.chosen, routed.experts, 0))


def _fitted(values: Sequence[int | None], fitter: DenseFitter) -> tuple[bool, Form | None]:
    """Whether there is a rule, and the form; a figure that is nowhere known has the rule that it is unknown."""
    known = tuple(value for value in values if value is not None)
    if not known:
        return True, None
    form = fitter.fit(known) if len(known) == len(values) else None
    return form is not None, form


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
    sums = Rebuilt(program, region, small_region(program, region)).fit_at(ProgramCosts(program, names).at)
    if sums.by_point:
        text = f"{', '.join(sorted({figure for _, figure in sums.by_point}))}: no polynomial of the workload"
        raise NoRule(Parting(what=NO_RULE, op=None, text=text))
    forms = {key: form or Form() for key, form in sums.forms.items()}
    stages = dict.fromkeys(stage for stage, _ in forms)
    by_stage = {stage: CostForms(**{name: forms[stage, name] for name in SUMS}) for stage in stages}
    for (stage, _), cost in apart.items():
        by_stage[stage] = by_stage.get(stage, CostForms()) + cost
    return FigureForms(by_stage=by_stage, peak_bytes=_peak_forms(program, region))


def _stepped_ops(program: Program, region: Region) -> dict[tuple[str, int], CostForms]:
    """Stage and kind -> the figures of ops outside all loops that have no polynomial price: sorts, broadcasts."""
    looped = {row for loop in program.loops for row in range(loop.first_op, loop.end_op)}
    ops, stages = ops_of(program.skeleton), stage_of_ops(program.skeleton)
    names, fitting = stage_names(program.skeleton), OpFitting(region)
    counts = Counter((stages[row], kind) for row, kind in enumerate(ops.kind) if row not in looped)
    inside = {program.kinds[ops.kind[row]].kind.name for row in looped}
    stepped: dict[tuple[str, int], CostForms] = {}
    for (stage, number), count in counts.items():
        kind = program.kinds[number]
        if kind.kind.name in inside or any(form.varies_by_block for form in kind.forms()):
            continue
        cost = fitting.cost(kind)
        if any(isinstance(atom, Step) and atom.kind in _STEPS for atom in cost.vector_flops.atoms()):
            stepped[names[stage], number] = cost.times(count)
    apart = {program.kinds[number].kind.name for _, number in stepped}
    for (stage, number), count in counts.items():  # all ops of such a name are left out of the sums
        if program.kinds[number].kind.name in apart and (names[stage], number) not in stepped:
            stepped[names[stage], number] = fitting.cost(program.kinds[number]).times(count)
    return stepped


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
    """The curves that are the largest somewhere: experts have as many curves as there are experts."""
    points = generic_points(region, _POINTS)
    at = Evaluation({name: np.array([point[name] for point in points], dtype=np.int64) for name in region})
    columns = at.table(curves)
    is_largest = columns == columns.max(axis=0)
    largest: list[Form] = []
    covered = np.zeros(len(points), dtype=bool)
    for number in np.argsort(-is_largest.sum(axis=1), kind="stable").tolist():
        if (is_largest[number] & ~covered).any():
            largest.append(curves[number])
            covered |= is_largest[number]
    return tuple(largest)


# What a program costs at points, by stage, without the call graphs of the points.
#
# Two blocks have the same ops, and so have two points: they differ in sizes alone.
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
            for place, form in enumerate(self._cost(kind, number)):
                total[place] += form * count
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
        known = self._costs.get(key)
        if known is None:
            op = number.kind(kind)
            cost, launches = price(op), len(kernels_of(op))
            known = (
                (0, 0, 0, launches, 1, 1)
                if cost is None
                else (cost.flops, cost.vector_flops, cost.bytes_moved, launches, 1, 0)
            )
            self._costs[key] = known
        return known
