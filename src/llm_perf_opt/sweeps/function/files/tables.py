"""The tables of a function file as what they stand for: forms, tensors and ops. What is wrong is named by its place."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from llm_perf_opt.core.callgraph.records import Json, OpKind, require_safe
from llm_perf_opt.core.reading import FileKind
from llm_perf_opt.sweeps.function.files.layout import FormTerms, FunctionFile, SizedKindRow, StepRow
from llm_perf_opt.sweeps.function.form import Atom, Form, Step, StepKind, monomial
from llm_perf_opt.sweeps.function.program.sized import RepeatedItem, Size, SizedKind, SizedMeta, Worded

FUNCTION_FILE = FileKind(
    name="function file",
    fix="make the function again (trace.over(...).save(FILE)), or restore the file from a copy",
    schema_version=1,
    is_sealed=True,
    max_bytes=2**28,
    max_elements=2**26,
)

_COEFFICIENT_BITS = 127
_MOST_ATOMS = 2**16
_MOST_INNER_TERMS = 64  # of a form that a step is of
_MOST_STEP_LEVELS = 3
_MOST_PARTS = 10_000  # ops in one composite, all levels together
_MOST_PART_LEVELS = 16
_LARGEST_COUNT = 2**31  # of chunks, and of experts: beyond it the formula of routing loses its last digit
_LARGEST_EXPERTS = 2**20
_CONSTANTS = {
    StepKind.CEIL: 1,
    StepKind.BITS: 0,
    StepKind.MAX: 1,
    StepKind.TOUCHED: 2,
    StepKind.SHARE: 3,
    StepKind.OFFSET: 3,
}

T = TypeVar("T")


class Tables:
    """What the rest of a file refers to."""

    def __init__(self, file: FunctionFile) -> None:
        self._file = file
        self.forms = _Forms(file).forms
        self.tensors = tuple(
            SizedMeta(tuple(self.size(size, f"tensors[{row}].shape") for size in one.shape), one.dtype, one.device)
            for row, one in enumerate(file.tensors)
        )
        self.kinds = self._kinds()

    def form(self, row: int, where: str) -> Form:
        """The form of that row."""
        return rows_of(self.forms, (row,), where)[0]

    def column(self, row: int, where: str) -> array[int]:
        """The column of that row."""
        return rows_of(self._file.columns, (row,), where)[0]

    def size(self, number: int, where: str) -> Size:
        """The number itself, or the form that it stands for."""
        if number < 0:
            return self.form(-1 - number, where)
        if number.bit_length() > 63:
            raise FUNCTION_FILE.malformed(where, "a size of at most 63 bits", number)
        return number

    def values(self, found: Mapping[str, Json], where: str) -> dict[str, Json]:
        """Free values, in which a number may be a form."""
        require_safe(found, where, FUNCTION_FILE)
        return {key: self._value(item, where) for key, item in found.items()}

    def _value(self, value: Any, where: str) -> Any:
        if isinstance(value, list):
            return [self._value(item, where) for item in value]
        if not isinstance(value, dict):
            return value
        match value:
            case {"$form": int(row), **rest} if not rest:
                return self.form(row, where)
            case {"$times": int(row), "item": item, **rest} if not rest:
                return RepeatedItem(self._value(item, where), self.form(row, where))
            case {"$text": [*parts], **rest} if not rest:
                return Worded(tuple(self._text_part(part, where) for part in parts))
        if any(key.startswith("$") for key in value):
            raise FUNCTION_FILE.malformed(where, "a form, a list of equal items or a text", list(value))
        return {key: self._value(item, where) for key, item in value.items()}

    def _text_part(self, part: Any, where: str) -> str | Size:
        found = self._value(part, where)
        if type(found) not in (str, int, Form):
            raise FUNCTION_FILE.malformed(where, "texts and numbers", part)
        return found  # type: ignore[no-any-return]

    def _kinds(self) -> tuple[SizedKind, ...]:
        kinds: list[SizedKind] = []
        sizes: list[tuple[int, int]] = []  # ops with their parts, and levels of parts
        for row, one in enumerate(self._file.kinds):
            where = f"kinds[{row}]"
            inner = rows_of(sizes, one.parts, f"{where}.parts")
            size = 1 + sum(ops for ops, _ in inner), 1 + max((levels for _, levels in inner), default=0)
            if size[0] > _MOST_PARTS or size[1] > _MOST_PART_LEVELS:
                limit = f"at most {_MOST_PARTS} parts on {_MOST_PART_LEVELS} levels"
                raise FUNCTION_FILE.malformed(f"{where}.parts", limit, list(one.parts))
            sizes.append(size)
            kinds.append(self._kind(one, where, rows_of(kinds, one.parts, f"{where}.parts")))
        return tuple(kinds)

    def _kind(self, row: SizedKindRow, where: str, parts: tuple[SizedKind, ...]) -> SizedKind:
        return SizedKind(
            kind=OpKind(
                name=row.name,
                inputs=(),
                outputs=(),
                input_names=row.input_names,
                output_aliases=row.output_aliases,
                mutates=row.mutates,
            ),
            inputs=rows_of(self.tensors, row.inputs, f"{where}.inputs"),
            outputs=rows_of(self.tensors, row.outputs, f"{where}.outputs"),
            arguments=self.values(row.arguments, f"{where}.arguments"),
            parts=parts,
        )


class _Forms:
    """Forms row by row: a step is of a form before the one that it occurs in, so nothing refers to itself."""

    def __init__(self, file: FunctionFile) -> None:
        if len(file.atoms) > _MOST_ATOMS:
            raise FUNCTION_FILE.malformed("atoms", f"at most {_MOST_ATOMS:,} rows", list(file.atoms))
        self._rows = file.atoms
        self._atoms: dict[int, Atom] = {}
        self._levels: list[int] = []  # of each form: steps of steps in it
        self.forms: list[Form] = []
        for row, terms in enumerate(file.forms):
            self._add(terms, f"forms[{row}]")

    def _add(self, terms: FormTerms, where: str) -> None:
        found: dict[tuple[Atom, ...], int] = {}
        levels = 0
        for coefficient, *rows in terms:
            if not 0 < abs(coefficient) < 2**_COEFFICIENT_BITS:
                limit = f"a coefficient of at most {_COEFFICIENT_BITS} bits, and not 0"
                raise FUNCTION_FILE.malformed(where, limit, coefficient)
            found[monomial(*(self._atom(row, where) for row in rows))] = coefficient
            levels = max([levels, *(self._atom_levels(row) for row in rows)])
        if len(found) < len(terms):
            raise FUNCTION_FILE.malformed(where, "each product of atoms once", [list(term) for term in terms])
        self.forms.append(Form(found))
        self._levels.append(levels)

    def _atom_levels(self, row: int) -> int:
        atom = self._rows[row]
        return 1 + self._levels[atom.of] if isinstance(atom, StepRow) else 0

    def _atom(self, row: int, where: str) -> Atom:
        if row not in self._atoms:
            self._atoms[row] = self._new_atom(rows_of(self._rows, (row,), where)[0], row, where)
        return self._atoms[row]

    def _new_atom(self, atom: str | StepRow, row: int, where: str) -> Atom:
        if isinstance(atom, str):
            return atom
        at = f"atoms[{row}]"
        if atom.of >= len(self.forms):
            raise FUNCTION_FILE.malformed(f"{at}.of", f"a form before {where}", atom.of)
        inner = self.forms[atom.of]
        if len(inner.terms) > _MOST_INNER_TERMS or self._levels[atom.of] >= _MOST_STEP_LEVELS:
            limit = f"a form of at most {_MOST_INNER_TERMS} terms, with steps on fewer than {_MOST_STEP_LEVELS} levels"
            raise FUNCTION_FILE.malformed(f"{at}.of", limit, atom.of)
        _require_constants(atom, f"{at}.constants")
        return Step(StepKind(atom.kind), inner, atom.constants)


def _require_constants(step: StepRow, where: str) -> None:
    """As many as the kind of step takes, in the range in which it is defined."""
    kind = StepKind(step.kind)
    found, count = step.constants, _CONSTANTS[kind]
    if len(found) != count:
        raise FUNCTION_FILE.malformed(where, f"{count} constants of {kind}", list(found))
    if count == 1 and not (kind is StepKind.MAX or 1 <= found[0] < _LARGEST_COUNT):
        raise FUNCTION_FILE.malformed(where, "a chunk of at least 1", found[0])
    if count == 1 and found[0] < 0:
        raise FUNCTION_FILE.malformed(where, "a constant of 0 or more", found[0])
    if count > 1 and not (1 <= found[0] <= found[1] <= _LARGEST_EXPERTS and max(found[2:], default=0) <= found[1]):
        limit = f"how many of how many experts, at most {_LARGEST_EXPERTS:,}, and an expert among them"
        raise FUNCTION_FILE.malformed(where, limit, list(found))


def rows_of(table: Sequence[T], rows: Sequence[int], where: str) -> tuple[T, ...]:
    """These rows of a table."""
    if rows and not (min(rows) >= 0 and max(rows) < len(table)):
        wrong = min(rows) if min(rows) < 0 else max(rows)
        raise FUNCTION_FILE.malformed(where, f"rows of a table of {len(table)}", wrong)
    return tuple(map(table.__getitem__, rows))
