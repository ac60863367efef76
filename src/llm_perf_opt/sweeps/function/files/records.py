"""Records with forms in them, to and from the rows of a file, field by field as the records declare them.

A field of a record is a key of its row. A form becomes its row in the table of forms, a size that may be a form becomes
a number (below zero: the form), a record another object. So a record may gain a field and the file has it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from inspect import cleandoc
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct

from llm_perf_opt.core.callgraph.json_layout import Count
from llm_perf_opt.sweeps.function.form import Form

Size = Annotated[int, Meta(description="A number; below zero a form: -1 is the first row of forms.")]
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
        return Literal[tuple(one.value for one in hint)]
    if is_dataclass(hint):
        return _row_type(hint, rows)  # type: ignore[arg-type]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        rest = [one for one in inner if not _is_size(hint) or one not in (int, Form)]
        choices = (*([Size] if _is_size(hint) else []), *(_row_hint(one, rows) for one in rest))
        return Union[choices]  # noqa: UP007  # as many as there are
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple[tuple(_row_hint(one, rows) for one in inner)]  # type: ignore[misc]
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
        return [to_row(item, one, special) for item, one in zip(items, _item_hints(hint, len(items)), strict=True)]
    return {key: to_row(item, inner[1], special) for key, item in value.items()} if origin is Mapping else value


def from_row(row: Any, hint: type[T], special: Readers, where: str) -> T:
    """The value of that type in a row that has been decoded."""
    found: T = _from_row(row, hint, special, where)
    return found


def _from_row(row: Any, hint: Any, special: Readers, where: str) -> Any:
    if hint in special:
        return special[hint](row, where)
    if is_dataclass(hint):
        hints = _hints(hint)  # type: ignore[arg-type]
        values = {name: _from_row(getattr(row, name), one, special, f"{where}.{name}") for name, one in hints.items()}
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
        return origin(_from_row(item, one, special, f"{where}[{place}]") for place, (item, one) in pairs)
    if origin is Mapping:
        return {key: _from_row(item, inner[1], special, f"{where}[{key[:80]!r}]") for key, item in row.items()}
    return row


def _only_choice(hint: Any) -> Any:
    """The type beside None."""
    choices = [option for option in get_args(hint) if option is not types.NoneType]
    assert len(choices) == 1, f"a field is of one type, and may be unknown: {hint}"
    return choices[0]


def _item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    inner = get_args(hint)
    return (inner[0],) * count if get_origin(hint) is frozenset or inner[-1] is Ellipsis else inner
