"""Any integer that an analysis works out of a call graph, as a form: asked at rebuilt points, fitted, and checked.

A rebuilt graph costs milliseconds and no trace. So there are always more points than unknowns, and those left over
must agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.costs.necessary.anatomy import anatomy_of
from llm_perf_opt.ops.op import OpRole
from llm_perf_opt.ops.table import op_role
from llm_perf_opt.sweeps.function.figures.costs import CHECKS, Region, basis_of, elements_of, generic_points
from llm_perf_opt.sweeps.function.fitting import BATCH, DenseFitter
from llm_perf_opt.sweeps.function.form import Form, Point, Step, StepKind
from llm_perf_opt.sweeps.function.program.program import Program

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
            found = {key: _fitted([row.get(key, 0) for row in rows], fitter) for key in left}
            forms.update((key, form) for key, (is_it, form) in found.items() if is_it)
            left = dict.fromkeys(key for key, (is_it, _) in found.items() if not is_it)
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
