"""One record out of another: fields of the same names are taken over, so that nobody copies them one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def filled(record: type[T], source: object, /, **given: object) -> T:
    """A dataclass or Struct of that type: each field is `given`, or else the attribute of that name of `source`.

    Values are taken as they are. A field that neither has raises, also where the record has a default for it, so that
    no figure is lost by a name.
    """
    kind: Any = record
    names = kind.__struct_fields__ if hasattr(kind, "__struct_fields__") else [one.name for one in fields(kind)]
    return record(**{name: getattr(source, name) for name in names if name not in given}, **given)


def all_filled(record: type[T], sources: Iterable[object]) -> tuple[T, ...]:
    """A record for each source, with the fields of the same names."""
    return tuple(filled(record, source) for source in sources)
