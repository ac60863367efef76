"""The file of a function, object by object, as it is written. `function.schema.json` is generated from these records.

What occurs often has a table of its own, and is referred to by its row: forms and their atoms, columns of integers,
module paths, tensors, ops. A size is a number; one below zero is a form: -1 is the first row of `forms`.

A field of a record is a key of its row. A form becomes its row in the table of forms, a size that may be a form becomes
a number (below zero: the form), a record another object. So a record may gain a field and the file has it.

What is wrong in a table is named by its place.
"""

from __future__ import annotations

import types
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct

from llm_perf_opt.core.callgraph.json_layout import Column, Count, FreeForm, StageRow, Texts
from llm_perf_opt.core.callgraph.records import Json, OpKind, require_safe
from llm_perf_opt.core.reading import FileKind
from llm_perf_opt.sweeps.function.form import Atom, Form, Step, StepKind, monomial
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.program import Program
from llm_perf_opt.sweeps.function.program.sized import RepeatedItem, Size, SizedKind, SizedMeta, Worded

StoredSize = Annotated[int, Meta(description="A number; below zero a form: -1 is the first row of forms.")]
FormRow = Annotated[Count, Meta(description="Row of forms.")]

_SCALARS: dict[Any, Any] = {Form: FormRow, int: Count, str: str, bool: bool, types.NoneType: types.NoneType}
_UNIONS = (Union, types.UnionType)
T = TypeVar("T")


class RowObject(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An object of the file: all of its keys are known, and none may be left out."""


Writers = Mapping[type, Callable[[Any], Any]]  # special type -> its row
Readers = Mapping[type, Callable[[Any, str], Any]]  # special type -> what a row at a place stands for


def row_type(record: type, rows: Mapping[type, Any] | None = None) -> Any:
    """The Struct of a record; `rows` are the types of rows that are not made field by field."""
    return _row_type(record, tuple((rows or {}).items()))


@cache
def _row_type(record: type, rows: tuple[tuple[type, Any], ...]) -> Any:
    hints = _hints(record)
    made: Any = defstruct(
        f"{record.__name__}Row",
        [(name, _row_hint(hint, rows)) for name, hint in hints.items()],
        bases=(RowObject,),
        kw_only=True,
        frozen=True,
        namespace={"__doc__": cleandoc(record.__doc__ or "")},
    )
    return made


@cache
def _hints(record: type) -> dict[str, Any]:
    """Field -> its type, of the fields that make the record."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record) if field.init}


def _row_hint(hint: Any, rows: tuple[tuple[type, Any], ...]) -> Any:
    known = _SCALARS | dict(rows)
    if hint in known:
        return known[hint]
    if _is_enum(hint):
        return Literal[tuple(member.value for member in hint)]
    if is_dataclass(hint):
        return _row_type(hint, rows)  # type: ignore[arg-type]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        rest = [choice for choice in inner if not _is_size(hint) or choice not in (int, Form)]
        choices = (*([StoredSize] if _is_size(hint) else []), *(_row_hint(choice, rows) for choice in rest))
        return Union[choices]  # noqa: UP007  # as many as there are
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple[tuple(_row_hint(item, rows) for item in inner)]  # type: ignore[misc]
    if origin in (tuple, frozenset):
        return tuple[_row_hint(inner[0], rows), ...]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, _row_hint(inner[1], rows)]  # type: ignore[misc]
    raise TypeError(f"no row for a field of type {hint}")


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _is_size(hint: Any) -> bool:
    return {int, Form} <= set(get_args(hint))


def to_row(value: Any, hint: Any, special: Writers) -> Any:
    """A value of that type as plain lists, dicts and numbers."""
    if hint in special:
        return special[hint](value)
    if is_dataclass(hint):
        hints = _hints(hint)  # type: ignore[arg-type]
        return {name: to_row(getattr(value, name), inner, special) for name, inner in hints.items()}
    origin, inner = get_origin(hint), get_args(hint)
    if value is None or _is_enum(hint):
        return None if value is None else value.value
    if _is_size(hint):
        return -1 - special[Form](value) if isinstance(value, Form) else value
    if origin in _UNIONS:
        return to_row(value, _only_choice(hint), special)
    if origin in (tuple, frozenset):
        items = sorted(value) if origin is frozenset else value
        return [to_row(item, typed, special) for item, typed in zip(items, _item_hints(hint, len(items)), strict=True)]
    return {key: to_row(item, inner[1], special) for key, item in value.items()} if origin is Mapping else value


def from_row(row: Any, hint: type[T], special: Readers, where: str) -> T:
    """The value of that type in a row that has been decoded."""
    record: T = _from_row(row, hint, special, where)
    return record


def _from_row(row: Any, hint: Any, special: Readers, where: str) -> Any:
    if hint in special:
        return special[hint](row, where)
    if is_dataclass(hint):
        hints = _hints(hint)  # type: ignore[arg-type]
        values = {
            name: _from_row(getattr(row, name), typed, special, f"{where}.{name}") for name, typed in hints.items()
        }
        return hint(**values)  # type: ignore[operator]
    origin, inner = get_origin(hint), get_args(hint)
    if row is None or _is_enum(hint):
        return None if row is None else hint(row)
    if _is_size(hint):
        return special[Form](-1 - row, where) if row < 0 else row
    if origin in _UNIONS:
        return _from_row(row, _only_choice(hint), special, where)
    if origin in (tuple, frozenset):
        pairs = enumerate(zip(row, _item_hints(hint, len(row)), strict=True))
        return origin(_from_row(item, typed, special, f"{where}[{place}]") for place, (item, typed) in pairs)
    if origin is Mapping:
        return {key: _from_row(item, inner[1], special, f"{where}[{key[:80]!r}]") for key, item in row.items()}
    return row


def _only_choice(hint: Any) -> Any:
    """The other type of an optional."""
    choices = [option for option in get_args(hint) if option is not types.NoneType]
    assert len(choices) == 1, f"a field is of one type, and may be unknown: {hint}"
    return choices[0]


def _item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    inner = get_args(hint)
    return (inner[0],) * count if get_origin(hint) is frozenset or inner[-1] is Ellipsis else inner


# In free values: {"$form": 3} is row 3 of `forms`, {"$times": 3, "item": x} a list of this many x, {"$text": [...]} a
# text of texts and numbers.
FORM_KEY, TIMES_KEY, TEXT_KEY = "$form", "$times", "$text"
MOST_FACTORS = 8
MOST_STEP_CONSTANTS = 3

Point = Annotated[dict[str, Count], Meta(description="Variable -> its value.")]
ColumnRow = Annotated[Count, Meta(description="Row of columns.")]
WithForms = Annotated[
    FreeForm,
    Meta(
        description='Any JSON values, at most 32 levels deep. {"$form": 3} is row 3 of forms, '
        '{"$times": 3, "item": x} a list of as many x as row 3 says, {"$text": [...]} a text made of texts and numbers.'
    ),
]
Term = Annotated[
    tuple[int, ...],
    Meta(min_length=1, max_length=MOST_FACTORS + 1, description="A coefficient, then the rows of atoms to multiply."),
]
FormTerms = Annotated[tuple[Term, ...], Meta(description="A sum of terms; none: 0.")]


if TYPE_CHECKING:
    StepName = str
else:
    StepName = Literal[tuple(kind.value for kind in StepKind)]


class StepRow(RowObject, frozen=True, kw_only=True):
    """A function of a form that is no polynomial: `ceil` of a / n; `bits` that a has; `max` of a and n.

    Of rows that draw k of n experts: `touched`, how many experts get rows; `share`, the rows of expert e; `offset`, the
    rows of all experts before e. The constants are (n), none, (n), (k, n), (k, n, e), (k, n, e).
    """

    kind: StepName
    of: Annotated[Count, Meta(description="Row of forms, before every form that the step occurs in.")]
    constants: Annotated[
        tuple[Annotated[int, Meta(ge=-2, le=2**63 - 1)], ...],
        Meta(
            max_length=MOST_STEP_CONSTANTS,
            description="In a loop over experts -1 is the expert of the block, and -2 the next expert.",
        ),
    ]


class TensorRow(RowObject, frozen=True, kw_only=True):
    """A tensor with dimensions that may be forms."""

    shape: tuple[StoredSize, ...]
    dtype: str
    device: str


class SizedKindRow(RowObject, frozen=True, kw_only=True):
    """One distinct op. `inputs` and `outputs` are rows of tensors, `parts` rows of kinds before this one."""

    name: str
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    arguments: WithForms
    input_names: Texts
    output_aliases: tuple[Annotated[int, Meta(ge=-1, le=2**31)], ...]
    mutates: bool
    parts: tuple[Count, ...]


class ParametersRow(RowObject, frozen=True, kw_only=True):
    """Weights and buffers by name; tied ones share a storage."""

    name: Texts
    tensor: Annotated[Column, Meta(description="Rows of tensors.")]
    storage: Annotated[Column, Meta(description="Rows of storages, or -1.")]
    is_buffer: Annotated[Column, Meta(description="0 or 1.")]


class ModelRow(RowObject, frozen=True, kw_only=True):
    """What a program has from the model and not from the workload: the keys of a call-graph file of these names."""

    tool_version: str
    library_versions: dict[str, str]
    model: str
    deployment: FreeForm
    tracer: str
    module_children: dict[str, Texts]
    module_types: dict[str, str]
    constructor_params: dict[str, FreeForm]


class OpsRow(RowObject, frozen=True, kw_only=True):
    """Every op, in order, as in a call-graph file. `kind` counts in `kinds` of the program."""

    kind: ColumnRow
    call: ColumnRow
    input_storages: ColumnRow
    output_storages: ColumnRow


class CallsRow(RowObject, frozen=True, kw_only=True):
    """Every module call, as in a call-graph file. `path` and the metas count in `paths` and `metas` of the program."""

    path: ColumnRow
    parent: ColumnRow
    first_op: ColumnRow
    end_op: ColumnRow
    input_count: ColumnRow
    output_count: ColumnRow
    input_metas: ColumnRow
    input_storages: ColumnRow
    output_metas: ColumnRow
    output_storages: ColumnRow


class BlocksRow(RowObject, frozen=True, kw_only=True):
    """Every block of memory, as in a call-graph file, with sizes that may be forms."""

    bytes: Annotated[Count, Meta(description="Row of columns; a number below zero is a form: -1 is row 0 of forms.")]
    born_op: ColumnRow
    freed_op: ColumnRow
    origin: ColumnRow


class GuessRow(RowObject, frozen=True, kw_only=True):
    """A value the run needed and no tensor held."""

    op: str
    policy: str
    site: str
    count: StoredSize


if TYPE_CHECKING:
    LoopRow = Any
else:
    LoopRow = row_type(Loop)


class ProgramRow(RowObject, frozen=True, kw_only=True):
    """What a phase runs in a cell: a call graph with sizes that may be forms, and the points where it was found."""

    phase: str
    model: Annotated[Count, Meta(description="Row of models.")]
    parameters: Annotated[Count, Meta(description="Row of parameters.")]
    stages: tuple[StageRow, ...]
    notes: Texts
    paths: Annotated[Count, Meta(description="Row of columns, which holds rows of paths.")]
    kinds: Annotated[Count, Meta(description="Row of columns, which holds rows of kinds.")]
    metas: Annotated[Count, Meta(description="Row of columns, which holds rows of tensors.")]
    ops: OpsRow
    calls: CallsRow
    storages: BlocksRow
    loops: tuple[LoopRow, ...]
    workload: WithForms
    runtime: WithForms
    oracle_answers: tuple[GuessRow, ...]
    samples: Annotated[tuple[Point, ...], Meta(min_length=1)]


if TYPE_CHECKING:
    PhaseRow = Any
else:
    PhaseRow = row_type(PhaseFunction, {Program: ProgramRow})


class FunctionFile(RowObject, frozen=True, kw_only=True):
    """A trace as a function of its workload. Invariants between keys are checked on loading."""

    schema_version: Literal[1]
    function_of: Annotated[str, Meta(description="The model, as it was given.")]
    tool_version: Annotated[str, Meta(description="Version of llm-perf-opt that wrote the file.")]
    workload: Annotated[FreeForm, Meta(description="The workload; the function varies its batch and context.")]
    deployment: Annotated[FreeForm, Meta(description="How weights and cache are stored, where that was asked for.")]
    media_tokens: Annotated[Count, Meta(description="Tokens of a context that images and sound make.")]
    atoms: Annotated[tuple[str | StepRow, ...], Meta(description="Table: variables and steps.")]
    forms: Annotated[tuple[FormTerms, ...], Meta(description="Table of the distinct forms.")]
    columns: Annotated[tuple[Column, ...], Meta(description="Table of the distinct columns.")]
    paths: Annotated[Texts, Meta(description="Table of module paths.")]
    tensors: Annotated[tuple[TensorRow, ...], Meta(description="Table of tensors.")]
    kinds: Annotated[tuple[SizedKindRow, ...], Meta(description="Table of distinct ops.")]
    models: Annotated[tuple[ModelRow, ...], Meta(description="Table of what programs have from the model.")]
    parameters: Annotated[tuple[ParametersRow, ...], Meta(description="Table of the distinct sets of parameters.")]
    phases: tuple[PhaseRow, ...]
    chunk: Annotated[
        PhaseRow | None, Meta(description="A step of several new tokens after a cache, where the function has it.")
    ]


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


class Tables:
    """What the rest of a file refers to."""

    def __init__(self, file: FunctionFile) -> None:
        self._file = file
        self.forms = _Forms(file).forms
        self.tensors = tuple(
            SizedMeta(tuple(self.size(size, f"tensors[{row}].shape") for size in meta.shape), meta.dtype, meta.device)
            for row, meta in enumerate(file.tensors)
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

    def values(self, attributes: Mapping[str, Json], where: str) -> dict[str, Json]:
        """Free values, in which a number may be a form."""
        require_safe(attributes, where, FUNCTION_FILE)
        return {key: self._value(item, where) for key, item in attributes.items()}

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
        value = self._value(part, where)
        if type(value) not in (str, int, Form):
            raise FUNCTION_FILE.malformed(where, "texts and numbers", part)
        return value  # type: ignore[no-any-return]

    def _kinds(self) -> tuple[SizedKind, ...]:
        kinds: list[SizedKind] = []
        sizes: list[tuple[int, int]] = []  # ops with their parts, and levels of parts
        for row, kind in enumerate(self._file.kinds):
            where = f"kinds[{row}]"
            inner = rows_of(sizes, kind.parts, f"{where}.parts")
            size = 1 + sum(ops for ops, _ in inner), 1 + max((levels for _, levels in inner), default=0)
            if size[0] > _MOST_PARTS or size[1] > _MOST_PART_LEVELS:
                limit = f"at most {_MOST_PARTS} parts on {_MOST_PART_LEVELS} levels"
                raise FUNCTION_FILE.malformed(f"{where}.parts", limit, list(kind.parts))
            sizes.append(size)
            kinds.append(self._kind(kind, where, rows_of(kinds, kind.parts, f"{where}.parts")))
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
        coefficients: dict[tuple[Atom, ...], int] = {}
        levels = 0
        for coefficient, *rows in terms:
            if not 0 < abs(coefficient) < 2**_COEFFICIENT_BITS:
                limit = f"a coefficient of at most {_COEFFICIENT_BITS} bits, and not 0"
                raise FUNCTION_FILE.malformed(where, limit, coefficient)
            coefficients[monomial(*(self._atom(row, where) for row in rows))] = coefficient
            levels = max([levels, *(self._atom_levels(row) for row in rows)])
        if len(coefficients) < len(terms):
            raise FUNCTION_FILE.malformed(where, "each matmul of atoms once", [list(term) for term in terms])
        self.forms.append(Form(coefficients))
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
    given, count = step.constants, _CONSTANTS[kind]
    if len(given) != count:
        raise FUNCTION_FILE.malformed(where, f"{count} constants of {kind}", list(given))
    if count == 1 and not (kind is StepKind.MAX or 1 <= given[0] < _LARGEST_COUNT):
        raise FUNCTION_FILE.malformed(where, "a chunk of at least 1", given[0])
    if count == 1 and given[0] < 0:
        raise FUNCTION_FILE.malformed(where, "a constant of 0 or more", given[0])
    if count > 1 and not (1 <= given[0] <= given[1] <= _LARGEST_EXPERTS and max(given[2:], default=0) <= given[1]):
        limit = f"how many of how many experts, at most {_LARGEST_EXPERTS:,}, and an expert among them"
        raise FUNCTION_FILE.malformed(where, limit, list(given))


def rows_of(table: Sequence[T], rows: Sequence[int], where: str) -> tuple[T, ...]:
    """These rows of a table."""
    if rows and not (min(rows) >= 0 and max(rows) < len(table)):
        wrong = min(rows) if min(rows) < 0 else max(rows)
        raise FUNCTION_FILE.malformed(where, f"rows of a table of {len(table)}", wrong)
    return tuple(map(table.__getitem__, rows))
