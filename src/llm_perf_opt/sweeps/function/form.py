"""Exact expressions of a workload: polynomials with integer coefficients over variables and steps of them.

`2 batch prompt + 7`, `ceil(prompt / 256)`. A form stands where a trace has an integer: the size of a dimension, the
bytes of a block of memory, the FLOPs of a phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from llm_perf_opt.ops.grouped_experts import touched_experts

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
OF_BLOCK, AFTER_BLOCK = -1, -2  # in place of an expert: the one whose block it is, and the one after it

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
        products = (
            (_sorted(left + right), a * b)
            for left, a in self.terms.items()
            for right, b in Form.of(other).terms.items()
        )
        return Form.sum_of(products)

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
            product = Form.of(coefficient)
            for atom in monomial:
                product = product * (block if atom == BLOCK else Form.atom(_of_block(atom, block)))
            total = total + product
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
    """Rows of the expert whose block it is, as rows of that expert."""
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
    """The product of these, in the order that makes equal products equal."""
    return _sorted(atoms)
