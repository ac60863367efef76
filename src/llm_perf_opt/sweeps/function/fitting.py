"""From values at a few sample points to the form that gives them: the simplest one, or none.

As many unknowns as samples would prove nothing, so a form always has fewer terms than there are samples. What it says
at other points is checked there, and not believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import combinations

from llm_perf_opt.sweeps.function.form import Form, Monomial, Point, Step, StepKind, monomial

BATCH = "batch"
_MOST_TERMS = 3  # of a dimension: "context + new + 1"
_MOST_TERMS_OF_SIZE = 4

Values = tuple[int, ...]
Column = tuple[Monomial, Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Rows that a router spreads over experts: `tokens` rows draw `chosen` of `experts`."""

    tokens: Form
    chosen: int
    experts: int


@dataclass(eq=False, kw_only=True)
class Fitter:
    """Finds forms over some variables. `chunks` are lengths in which the code cuts a sequence."""

    points: Sequence[Point]
    variables: Sequence[str]
    chunks: Sequence[int] = ()
    routed: Sequence[Routed] = ()
    _found: dict[tuple[Values, bool], Form | None] = field(default_factory=dict, init=False)

    def dimension(self, values: Values) -> Form | None:
        """The size of a dimension, a count or an argument."""
        return self._find(values, is_size=False)

    def size(self, values: Values) -> Form | None:
        """The bytes of a block of memory, in which dimensions are multiplied."""
        return self._find(values, is_size=True)

    def _find(self, values: Values, *, is_size: bool) -> Form | None:
        key = values, is_size
        if key not in self._found:
            self._found[key] = self._search(values, is_size=is_size)
        return self._found[key]

    def _search(self, values: Values, *, is_size: bool) -> Form | None:
        if len(set(values)) == 1:
            return Form.of(values[0])
        most = _MOST_TERMS_OF_SIZE if is_size else _MOST_TERMS
        for tiers in (self._polynomials(is_size=is_size), self._stepped()):
            for terms in range(1, most + 1):
                for columns in tiers:
                    for chosen in combinations(columns, terms):
                        form = solve(values, chosen)
                        if form is not None:
                            return form
        return None

    def _polynomials(self, *, is_size: bool) -> list[list[Column]]:
        """Few and simple monomials first."""
        plain = self._plain()
        squares = [monomial(v, v) for v in self._lengths()] if is_size else []
        return [self._columns(plain), self._columns([*plain, *squares, *self._with_batch(squares)])]

    def _stepped(self) -> list[list[Column]]:
        """One kind of step at a time: two chunks of different lengths could give any few values."""
        plain = self._plain()
        return [
            self._columns([*base, (step,), *self._with_batch([(step,)])])
            for base in (plain[:2], plain)
            for step in self._steps()
        ]

    def _lengths(self) -> list[str]:
        return [name for name in self.variables if name != BATCH]

    def _plain(self) -> list[Monomial]:
        lengths = self._lengths()
        alone: list[Monomial] = [(), *((v,) for v in lengths), *(monomial(*pair) for pair in combinations(lengths, 2))]
        return [*alone, *self._with_batch(alone)]

    def _with_batch(self, monomials: Iterable[Monomial]) -> list[Monomial]:
        return [monomial(BATCH, *names) for names in monomials] if BATCH in self.variables else []

    def _steps(self) -> list[Step]:
        chunked = [Step(StepKind.CEIL, Form.atom(v), (n,)) for n in self.chunks for v in self._lengths()]
        touched = [Step(StepKind.TOUCHED, experts.tokens, (experts.chosen, experts.experts)) for experts in self.routed]
        return [*chunked, *touched]

    def _columns(self, monomials: Iterable[Monomial]) -> list[Column]:
        return [(term, tuple(_matmul_at(term, point) for point in self.points)) for term in dict.fromkeys(monomials)]


def _matmul_at(term: Monomial, point: Point) -> int:
    return Form({term: 1}).at(point)


def solve(values: Values, columns: Sequence[Column]) -> Form | None:
    """Integer coefficients of these columns that give every value; None where there are none, or more than one set."""
    if len(values) <= len(columns):
        return None
    if len(columns) == 1:
        term, column = columns[0]
        if not column[0] or values[0] % column[0]:
            return None
        coefficient = values[0] // column[0]
        is_it = coefficient and all(value == coefficient * x for value, x in zip(values, column, strict=True))
        return Form({term: coefficient}) if is_it else None
    coefficients = _eliminated(tuple(column for _, column in columns), values)
    if coefficients is None or not all(coefficients):
        return None  # a coefficient of 0: fewer columns do it, and were tried
    return Form.sum_of((term, coefficient) for (term, _), coefficient in zip(columns, coefficients, strict=True))


def _eliminated(columns: tuple[Values, ...], values: Values) -> tuple[int, ...] | None:
    """Gauss's elimination without rounding: rows that are left over must agree."""
    rows = [[Fraction(column[place]) for column in columns] + [Fraction(value)] for place, value in enumerate(values)]
    width = len(columns)
    for step in range(width):
        pivot = next((row for row in range(step, len(rows)) if rows[row][step]), None)
        if pivot is None:
            return None
        rows[step], rows[pivot] = rows[pivot], rows[step]
        lead = rows[step]
        for row in range(len(rows)):
            if row != step and rows[row][step]:
                factor = rows[row][step] / lead[step]
                rows[row] = [a - factor * b for a, b in zip(rows[row], lead, strict=True)]
    if any(row[width] for row in rows[width:]):
        return None
    solution = [rows[place][width] / rows[place][place] for place in range(width)]
    return tuple(int(x) for x in solution) if all(x.denominator == 1 for x in solution) else None


class DenseFitter:
    """Coefficients of a whole basis from values at many points: as many points solve it, and all others check it.

    For figures that an analysis works out at any point, so that points cost nothing. Monomials that the points do not
    tell apart from others are left out.
    """

    def __init__(self, monomials: Sequence[Monomial], points: Sequence[Point]) -> None:
        matrix = [[_matmul_at(monomial, point) for monomial in monomials] for point in points]
        self._rows, columns = _pivots(matrix)
        self._monomials = [monomials[column] for column in columns]
        self._matrix = [[row[column] for column in columns] for row in matrix]
        self._inverse = _inverted([self._matrix[row] for row in self._rows])
        self.checks = len(points) - len(self._rows)
        self.fit = cache(self._fit)

    def _fit(self, values: Values) -> Form | None:
        """The form with these values at the points; None: none over this basis."""
        known = [values[row] for row in self._rows]
        solution = [sum((a * b for a, b in zip(row, known, strict=True)), Fraction(0)) for row in self._inverse]
        if any(x.denominator != 1 for x in solution):
            return None
        numbers = [int(x) for x in solution]
        given = (sum(a * b for a, b in zip(row, numbers, strict=True)) for row in self._matrix)
        if any(fitted != value for fitted, value in zip(given, values, strict=True)):
            return None
        return Form.sum_of((term, number) for term, number in zip(self._monomials, numbers, strict=True))


def _pivots(matrix: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Rows and columns of a square part that has an inverse, as large as there is one."""
    rows = [[Fraction(x) for x in row] for row in matrix]
    left, taken, columns = list(range(len(rows))), [], []
    for column in range(len(rows[0])):
        pivot = next((row for row in left if rows[row][column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        taken.append(pivot)
        columns.append(column)
        for row in left:
            if rows[row][column]:
                factor = rows[row][column] / rows[pivot][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return taken, columns


def _inverted(matrix: list[list[int]]) -> list[list[Fraction]]:
    size = len(matrix)
    rows = [
        [Fraction(x) for x in row] + [Fraction(int(place == other)) for other in range(size)]
        for place, row in enumerate(matrix)
    ]
    for step in range(size):
        pivot = next(row for row in range(step, size) if rows[row][step])
        rows[step], rows[pivot] = rows[pivot], rows[step]
        lead = rows[step][step]
        rows[step] = [x / lead for x in rows[step]]
        for row in range(size):
            if row != step and rows[row][step]:
                factor = rows[row][step]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[step], strict=True)]
    return [row[size:] for row in rows]
