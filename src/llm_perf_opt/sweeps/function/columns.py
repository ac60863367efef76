"""Forms at many points at once: columns of numbers, exact to the last integer.

A column is int64 where every value fits. Where one does not, the greatest common divisor of the coefficients is taken
out first; what is still too large is worked out with Python's integers, and the column then holds those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.ops.grouped_experts import tokens_for_all
from llm_perf_opt.sweeps.function.form import Atom, Form, Step, StepKind, step_value

Column = NDArray[Any]  # of int64, or of Python's integers
Points = Mapping[str, Column]  # variable -> its value at each point, int64

_EXACT = float(2**53)  # whole numbers that float64 holds
_FITS = float(2**62)  # a margin of two against sums of floats that round


class Evaluation:
    """Some points, at which any number of forms can be asked; a product of variables is worked out once."""

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
        values = [self._product(monomial) if monomial else ones for monomial in monomials]
        table: Column = factors @ np.array(values, dtype=np.int64).reshape(len(monomials), self.size)
        return table

    def largest_of(self, forms: Sequence[Form]) -> Column:
        """At each point the largest of several forms."""
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
                total += self._product(monomial) * np.int64(coefficient)
        return total

    def _product(self, monomial: tuple[Atom, ...]) -> Column:
        if monomial not in self._columns:
            product = self._atom(monomial[0])
            for atom in monomial[1:]:
                product = product * self._atom(atom)
            self._columns[monomial] = product
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
