"""What a program costs as forms: FLOPs, bytes, kernel launches and peak memory, by stage and in all.

The price of an op is asked at as many points as its polynomial has terms, and at some more that check it. The points
are not traced: the program says what runs there. So no formula of an op has to know of forms.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import exp, log, prod
from typing import TypeVar

from llm_perf_opt.core.callgraph.queries import ops_of, stage_names, stage_of_ops
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.costs.memory.live_memory import LIVE_ORIGINS
from llm_perf_opt.ops.table import kernels_of, price
from llm_perf_opt.sweeps.function.fitting import BATCH, DenseFitter
from llm_perf_opt.sweeps.function.form import Column, Evaluation, Form, Monomial, Point, Step, StepKind, monomial
from llm_perf_opt.sweeps.function.program.alignment import Parting, storages_of
from llm_perf_opt.sweeps.function.program.program import NO_RULE, NoRule, Program
from llm_perf_opt.sweeps.function.program.sized import SizedKind, SizedMeta

Region = Mapping[str, tuple[int, int]]  # variable -> its lowest and its highest value

_LENGTH_DEGREE = 3
CHECKS = 6  # points beyond those that solve for the coefficients
ZERO = Form()

Fit = Callable[[tuple[int, ...]], Form | None]  # values at points -> the form that gives them
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForms:
    """The figures of some ops. `unpriced_ops` count in `ops` and in no other sum."""

    flops: Form = ZERO
    vector_flops: Form = ZERO
    bytes_moved: Form = ZERO
    launches: Form = ZERO
    ops: Form = ZERO
    unpriced_ops: Form = ZERO

    def __add__(self, other: CostForms) -> CostForms:
        return CostForms(
            flops=self.flops + other.flops,
            vector_flops=self.vector_flops + other.vector_flops,
            bytes_moved=self.bytes_moved + other.bytes_moved,
            launches=self.launches + other.launches,
            ops=self.ops + other.ops,
            unpriced_ops=self.unpriced_ops + other.unpriced_ops,
        )

    def times(self, count: int) -> CostForms:
        """The figures of this many runs."""
        return CostForms(
            flops=self.flops * count,
            vector_flops=self.vector_flops * count,
            bytes_moved=self.bytes_moved * count,
            launches=self.launches * count,
            ops=self.ops * count,
            unpriced_ops=self.unpriced_ops * count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureForms:
    """The figures of a program: of each stage and in all, and the forms of which the largest is the peak memory.

    No forms of the peak: it is none, and has to be asked at each point.
    """

    by_stage: Mapping[str, CostForms]
    peak_bytes: tuple[Form, ...]

    @property
    def total(self) -> CostForms:
        """All stages together."""
        result = CostForms()
        for cost in self.by_stage.values():
            result = result + cost
        return result

    def at(self, name: str, point: Point) -> int:
        """One figure at one point."""
        return max(form.at(point) for form in self._forms(name))

    def column(self, name: str, at: Evaluation) -> Column:
        """One figure at many points."""
        return at.largest_of(self._forms(name))

    def _forms(self, name: str) -> Sequence[Form]:
        """The forms of which a figure is the largest."""
        if name == "peak_bytes":
            return self.peak_bytes
        form: Form = getattr(self.total, name)
        return (form,)


def figure_forms(program: Program, region: Region) -> FigureForms:
    """The figures of a program without loops in a region in which it runs."""
    fitting = OpFitting(region)
    names, column = stage_names(program.skeleton), ops_of(program.skeleton).kind
    counts = Counter(zip(stage_of_ops(program.skeleton), column, strict=True))
    costs = [fitting.fitted(kind, _cost) for kind in program.kinds]
    by_stage = {name: CostForms() for name in names}
    for (stage, kind), count in counts.items():
        by_stage[names[stage]] = by_stage[names[stage]] + costs[kind].times(count)
    return FigureForms(
        by_stage={name: cost for name, cost in by_stage.items() if cost.ops.terms}, peak_bytes=peak_forms(program)
    )


class OpFitting:
    """Figures of ops as forms, by asking for them at points of a region."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._fitters: dict[tuple[Step, ...], tuple[list[Point], DenseFitter]] = {}

    def cost(self, kind: SizedKind) -> CostForms:
        """The figures of one run of an op."""
        return self.fitted(kind, _cost)

    def fitted(self, kind: SizedKind, ask: Callable[[Sequence[OpKind], Fit], Found | None]) -> Found:
        """What `ask` makes of an op at points and of how values there become forms, over the first basis that does."""
        forms = list(kind.forms())
        steps = tuple(dict.fromkeys(atom for form in forms for atom in form.atoms() if isinstance(atom, Step)))
        for basis in (steps, (*steps, *_sort_depths(kind)), (*steps, *_larger_sides(kind))):
            points, fitter = self._fitter(basis)
            fitted = ask([kind.at(point) for point in points], fitter.fit)
            if fitted is not None:
                return fitted
        text = f"the price of {kind.kind.name} is not a polynomial of its sizes"
        raise NoRule(Parting(what=NO_RULE, op=None, text=text))

    def _fitter(self, steps: tuple[Step, ...]) -> tuple[list[Point], DenseFitter]:
        if steps not in self._fitters:
            monomials = basis_of(self._region, steps)
            points = generic_points(self._region, len(monomials) + CHECKS)
            self._fitters[steps] = points, DenseFitter(monomials, points)
        return self._fitters[steps]


def _cost(kinds: Sequence[OpKind], fit: Fit) -> CostForms | None:
    """The figures of one run of an op; None where one is no form over the basis."""
    prices = [price(kind) for kind in kinds]
    launches = fit(tuple(len(kernels_of(kind)) for kind in kinds))
    known = [cost for cost in prices if cost is not None]
    if launches is None or 0 < len(known) < len(prices):
        return None
    if not known:
        return CostForms(launches=launches, ops=Form.of(1), unpriced_ops=Form.of(1))
    flops = fit(tuple(cost.flops for cost in known))
    vector_flops = fit(tuple(cost.vector_flops for cost in known))
    bytes_moved = fit(tuple(cost.bytes_moved for cost in known))
    if flops is None or vector_flops is None or bytes_moved is None:
        return None
    return CostForms(flops=flops, vector_flops=vector_flops, bytes_moved=bytes_moved, launches=launches, ops=Form.of(1))


def _sort_depths(kind: SizedKind) -> list[Step]:
    """How deep a sort along each dimension goes."""
    sizes = [size for meta in kind.inputs for size in meta.shape if isinstance(size, Form)]
    return [Step(StepKind.BITS, size - 1) for size in dict.fromkeys(sizes)]


def _larger_sides(kind: SizedKind) -> list[Step]:
    """The larger of a tensor's size and another tensor's size, which does not vary."""
    sizes = [elements_of(meta) for meta in (*kind.inputs, *kind.outputs)]
    fixed = [size.constant for size in sizes if size.constant is not None]
    varying = [size for size in sizes if size.constant is None]
    return list(dict.fromkeys(Step(StepKind.MAX, size, (limit,)) for size in varying for limit in fixed))


def elements_of(meta: SizedMeta) -> Form:
    """How many numbers a tensor has."""
    total = Form.of(1)
    for size in meta.shape:
        total = total * size
    return total


def basis_of(region: Region, steps: Sequence[Step] = ()) -> list[Monomial]:
    """Matmuls of lengths up to the third degree and of one batch, and of a step with up to two of them."""
    varying = [name for name, (low, high) in region.items() if low < high]
    lengths = [name for name in varying if name != BATCH]
    matmuls = [
        names for degree in range(_LENGTH_DEGREE + 1) for names in combinations_with_replacement(lengths, degree)
    ]
    batches: list[tuple[str, ...]] = [(), (BATCH,)] if BATCH in varying else [()]
    plain = [monomial(*batch, *matmul) for batch in batches for matmul in matmuls]
    stepped = [
        monomial(step, *batch, *names) for step in steps for batch in batches for names in matmuls if len(names) < 2
    ]
    chunked = [step for step in steps if step.kind is StepKind.CEIL]
    stepped += [monomial(step, step, *batch) for step in chunked for batch in batches]
    squares = [(BATCH, BATCH)] if BATCH in varying else []
    return list(dict.fromkeys([*plain, *stepped, *squares]))


def generic_points(region: Region, count: int) -> list[Point]:
    """`count` points of a region, or all it has, in no regular order; the same for the same region."""
    rng = random.Random(0)
    corners = [dict(zip(region, corner, strict=True)) for corner in product(*(set(ends) for ends in region.values()))]
    corners_by_values = {tuple(point.values()): point for point in corners}
    room = prod(high - low + 1 for low, high in region.values())
    while len(corners_by_values) < min(count + len(corners), room):
        point = {name: _spread(rng, low, high) for name, (low, high) in region.items()}
        corners_by_values[tuple(point.values())] = point
    return list(corners_by_values.values())


def _spread(rng: random.Random, low: int, high: int) -> int:
    """Small numbers as often as large ones, and none outside."""
    return min(high, max(low, round(exp(rng.uniform(log(low + 1), log(high + 1)))) - 1))


def peak_forms(program: Program) -> tuple[Form, ...]:
    """The forms of which the largest is the most bytes alive during one op: inputs, activations, scratch."""
    storages, op_count = storages_of(program.skeleton), len(ops_of(program.skeleton).kind)
    rows = zip(storages.origin, storages.born_op, storages.freed_op, program.block_bytes, strict=True)
    lives = ((Form.of(size), born, freed) for origin, born, freed, size in rows if origin in LIVE_ORIGINS)
    return undominated(live_curves(lives, op_count)) if op_count else (ZERO,)


def live_curves(lives: Iterable[tuple[Form, int, int]], op_count: int) -> list[Mapping[Monomial, int]]:
    """The bytes alive at each op, each sum once; a life is how many bytes, from which op, up to which."""
    steps: list[dict[Monomial, int]] = [{} for _ in range(op_count + 1)]
    for size, born, freed in lives:
        for term, coefficient in size.terms.items():
            steps[born][term] = steps[born].get(term, 0) + coefficient
            steps[freed][term] = steps[freed].get(term, 0) - coefficient
    live: dict[Monomial, int] = {}
    curves: dict[frozenset[tuple[Monomial, int]], Mapping[Monomial, int]] = {}
    for step in steps[:-1]:
        if step:
            for term, coefficient in step.items():
                live[term] = live.get(term, 0) + coefficient
            curve = {term: value for term, value in live.items() if value}
            curves.setdefault(frozenset(curve.items()), curve)  # a set finds it again, its own order would be a hash's
    return list(curves.values())


def undominated(curves: Sequence[Mapping[Monomial, int]]) -> tuple[Form, ...]:
    """The curves that no other exceeds in every coefficient: monomials are never negative, so no other is largest."""
    undominated_curves: list[Mapping[Monomial, int]] = []
    for curve in sorted(curves, key=lambda terms: -sum(terms.values())):
        if not any(_covers(other, curve) for other in undominated_curves):
            undominated_curves = [other for other in undominated_curves if not _covers(curve, other)] + [curve]
    return tuple(Form(dict(curve)) for curve in undominated_curves) or (ZERO,)


def _covers(covering: Mapping[Monomial, int], covered: Mapping[Monomial, int]) -> bool:
    return all(covering.get(key, 0) >= covered.get(key, 0) for key in (*covering, *covered))
