"""Exact expressions of a workload: polynomials with integer coefficients over variables and steps of them.

`2 batch prompt + 7`, `ceil(prompt / 256)`. A form stands where a trace has an integer: the size of a dimension, the
bytes of a block of memory, the FLOPs of a phase.

At many points at once a form is a column of numbers, exact to the last integer: int64 where every value fits. Where one
does not, the greatest common divisor of the coefficients is taken out first; what is still too large is worked out with
Python's integers, and the column then holds those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.ops.grouped_experts import tokens_for_all, touched_experts

Point = Mapping[str, int]  # variable -> its value


class StepKind(StrEnum):
    """Functions of a form that are no polynomials."""

    CEIL = "ceil"  # of a / n: how many chunks of n
    BITS = "bits"  # how many binary digits: the depth of a sort
    MAX = "max"  # of a and n
    TOUCHED = "touched"  # experts that get rows when a rows draw k of n
    SHARE = "share"  # rows of expert e among them
    OFFSET = "offset"  # rows of all experts before e


@dataclass(frozen=True)
class Step:
    """`kind` of a form, with constants: `ceil(S / 256)` is `Step(CEIL, S, (256,))`."""

    kind: StepKind
    of: Form
    constants: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.of, self.constants))

    def at(self, point: Point) -> int:
        """Its value at one point."""
        return step_value(self.kind, self.of.at(point), self.constants)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join((str(self.of), *map(str, self.constants)))})"


def step_value(kind: StepKind, value: int, constants: tuple[int, ...]) -> int:
    """The step of one number."""
    match kind:
        case StepKind.CEIL:
            return -(-value // constants[0])
        case StepKind.BITS:
            return value.bit_length()
        case StepKind.MAX:
            return max(value, constants[0])
        case StepKind.TOUCHED:
            k, candidates = constants
            return touched_experts(candidates, k, value)
        case StepKind.SHARE:
            k, candidates, expert = constants
            return _offset(value, k, candidates, expert + 1) - _offset(value, k, candidates, expert)
        case StepKind.OFFSET:
            k, candidates, expert = constants
            return _offset(value, k, candidates, expert)


def _offset(rows: int, chosen: int, experts: int, expert: int) -> int:
    """Rows of all experts before one, spread as evenly as whole rows can be over those that have any."""
    touched = max(1, touched_experts(experts, chosen, rows))
    per_expert, rest = divmod(rows * chosen, touched)
    return min(expert, touched) * per_expert + min(expert, rest)


BLOCK = "block"  # as a variable: the number of a loop's block, from 0
OF_BLOCK, AFTER_BLOCK = -1, -2  # in place of an expert: the expert of the block, and the next one

Atom = str | Step
Monomial = tuple[Atom, ...]  # sorted by their text; () is the constant


@dataclass(frozen=True, eq=False)
class Form:
    """A sum of monomials with integer coefficients, none of them zero."""

    terms: Mapping[Monomial, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: int | Form) -> Form:
        """A number as a form."""
        return value if isinstance(value, Form) else cls({(): value} if value else {})

    @classmethod
    def atom(cls, atom: Atom) -> Form:
        """A variable or a step as a form."""
        return cls({(atom,): 1})

    @classmethod
    def sum_of(cls, terms: Iterable[tuple[Monomial, int]]) -> Form:
        """Monomials with coefficients, equal ones added up."""
        total: dict[Monomial, int] = {}
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return cls({monomial: coefficient for monomial, coefficient in total.items() if coefficient})

    def __add__(self, other: int | Form) -> Form:
        return Form.sum_of((*self.terms.items(), *Form.of(other).terms.items()))

    def __mul__(self, other: int | Form) -> Form:
        matmuls = (
            (_sorted(left + right), a * b)
            for left, a in self.terms.items()
            for right, b in Form.of(other).terms.items()
        )
        return Form.sum_of(matmuls)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Form:
        return self * -1

    def __sub__(self, other: int | Form) -> Form:
        return self + -Form.of(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> frozenset[tuple[Monomial, int]]:
        return frozenset(self.terms.items())

    @property
    def constant(self) -> int | None:
        """The number that it is at every point; None where it varies."""
        return self.terms.get((), 0) if not any(self.terms) else None

    def at(self, point: Point) -> int:
        """The value at one point, exact."""
        total = 0
        for monomial, coefficient in self.terms.items():
            value = coefficient
            for atom in monomial:
                value *= point[atom] if isinstance(atom, str) else atom.at(point)
            total += value
        return total

    def bound(self, block: int) -> Form:
        """The form in one block of a loop."""
        if not self.varies_by_block:
            return self
        if block not in self._in_blocks:
            self._in_blocks[block] = self._bound(block)
        return self._in_blocks[block]

    @cached_property
    def _in_blocks(self) -> dict[int, Form]:
        return {}

    def _bound(self, block: int) -> Form:
        total = Form()
        for monomial, coefficient in self.terms.items():
            matmul = Form.of(coefficient)
            for atom in monomial:
                matmul = matmul * (block if atom == BLOCK else Form.atom(_of_block(atom, block)))
            total = total + matmul
        return total

    @cached_property
    def varies_by_block(self) -> bool:
        """Whether it is another in each block of a loop."""
        return any(atom == BLOCK or _of_block(atom, 0) != atom for atom in self.atoms())

    def atoms(self) -> Iterator[Atom]:
        """Every variable and step in it, as often as it occurs."""
        return (atom for monomial in self.terms for atom in monomial)

    def __str__(self) -> str:
        return " + ".join(_term_text(*term) for term in self.terms.items()) or "0"


def _of_block(atom: Atom, block: int) -> Atom:
    """Rows of the expert of the block, as rows of that expert."""
    if isinstance(atom, Step) and atom.kind in (StepKind.SHARE, StepKind.OFFSET) and atom.constants[2] < 0:
        chosen, experts, place = atom.constants
        return Step(atom.kind, atom.of, (chosen, experts, block + (place == AFTER_BLOCK)))
    return atom


def _term_text(monomial: Monomial, coefficient: int) -> str:
    factors = " ".join(map(str, monomial))
    return f"{coefficient:,}" if not factors else factors if coefficient == 1 else f"{coefficient:,} {factors}"


def _sorted(monomial: Monomial) -> Monomial:
    return tuple(sorted(monomial, key=str))


def monomial(*atoms: Atom) -> Monomial:
    """The matmul of these, in the order that makes equal matmuls equal."""
    return _sorted(atoms)


class AnsweredBy(StrEnum):
    """How figures at many points were found."""

    FORM = "by form"  # all points at once
    POINT = "by point"  # the call graph of each point, analysed by itself


Column = NDArray[Any]  # of int64, or of Python's integers
Points = Mapping[str, Column]  # variable -> its value at each point, int64

_EXACT = float(2**53)  # whole numbers that float64 holds
_FITS = float(2**62)  # a margin of two against sums of floats that round


class Evaluation:
    """Some points, at which any number of forms can be asked; a matmul of variables is worked out once."""

    def __init__(self, points: Points) -> None:
        self._columns: dict[tuple[Atom, ...], Column] = {}
        self._largest: dict[Atom, float] = {}
        self._points = {name: np.asarray(column, dtype=np.int64) for name, column in points.items()}
        self.size = len(next(iter(self._points.values())))

    def of(self, form: Form) -> Column:
        """The form at each point."""
        if form.constant is not None:
            return np.full(self.size, form.constant, dtype=np.int64 if abs(form.constant) < _FITS else object)
        if self._reach(form) < _FITS:
            return self._int64(form)
        divisor = math.gcd(*form.terms.values())
        smaller = Form({term: coefficient // divisor for term, coefficient in form.terms.items()})
        if self._reach(smaller) < _FITS:
            return self._int64(smaller).astype(object) * divisor
        return self._exact(form)

    def table(self, forms: Sequence[Form]) -> Column:
        """Forms at each point: a row for each form."""
        monomials = list(dict.fromkeys(term for form in forms for term in form.terms))
        reach = sum(
            max(abs(form.terms.get(term, 0)) for form in forms) * (self._bound(term) if term else 1.0)
            for term in monomials
        )
        if reach >= _FITS:
            return np.array([self.of(form) for form in forms], dtype=object)
        places = {term: place for place, term in enumerate(monomials)}
        factors = np.zeros((len(forms), len(monomials)), dtype=np.int64)
        for row, form in enumerate(forms):
            for term, coefficient in form.terms.items():
                factors[row, places[term]] = coefficient
        ones = np.ones(self.size, dtype=np.int64)
        values = [self._matmul(monomial) if monomial else ones for monomial in monomials]
        table: Column = factors @ np.array(values, dtype=np.int64).reshape(len(monomials), self.size)
        return table

    def largest_of(self, forms: Sequence[Form]) -> Column:
        """The largest of several forms at each point."""
        columns = [self.of(form) for form in forms]
        result = columns[0]
        for column in columns[1:]:
            result = np.maximum(result, column)
        return result

    def _reach(self, form: Form) -> float:
        """An upper bound of every partial sum."""
        return sum(abs(coefficient) * self._bound(term) for term, coefficient in form.terms.items())

    def _bound(self, monomial: tuple[Atom, ...]) -> float:
        return math.prod(self._atom_bound(atom) for atom in monomial)

    def _atom_bound(self, atom: Atom) -> float:
        if atom not in self._largest:
            column = self._atom(atom)
            self._largest[atom] = max(float(column.max()), -float(column.min())) if self.size else 0.0
        return self._largest[atom]

    def _int64(self, form: Form) -> Column:
        total: Column = np.full(self.size, form.terms.get((), 0), dtype=np.int64)
        for monomial, coefficient in form.terms.items():
            if monomial:
                total += self._matmul(monomial) * np.int64(coefficient)
        return total

    def _matmul(self, monomial: tuple[Atom, ...]) -> Column:
        if monomial not in self._columns:
            matmul = self._atom(monomial[0])
            for atom in monomial[1:]:
                matmul = matmul * self._atom(atom)
            self._columns[monomial] = matmul
        return self._columns[monomial]

    def _atom(self, atom: Atom) -> Column:
        if isinstance(atom, str):
            return self._points[atom]
        if (atom,) not in self._columns:
            self._columns[atom,] = self._step(atom)
        return self._columns[atom,]

    def _step(self, step: Step) -> Column:
        values = self.of(step.of)
        if step.kind is StepKind.CEIL:
            return -(-values // step.constants[0])
        if step.kind is StepKind.MAX:
            return np.maximum(values, step.constants[0])
        if step.kind is StepKind.BITS and float(np.max(values, initial=0)) < _EXACT:
            return np.frexp(np.maximum(values, 0).astype(np.float64))[1].astype(np.int64)
        if step.kind is StepKind.TOUCHED:
            chosen, experts = step.constants
            values = np.minimum(values, tokens_for_all(experts, chosen))
        distinct, inverse = np.unique(values, return_inverse=True)
        stepped = [step_value(step.kind, int(value), step.constants) for value in distinct]
        return np.asarray(stepped, dtype=np.int64)[inverse]

    def _exact(self, form: Form) -> Column:
        total: Column = np.zeros(self.size, dtype=object)
        for monomial, coefficient in form.terms.items():
            part: Column = np.full(self.size, coefficient, dtype=object)
            for atom in monomial:
                part = part * self._atom(atom).astype(object)
            total = total + part
        return total
