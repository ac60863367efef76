"""Options as fields of a frozen record: type, default, limits, choices and help text, declared once.

The command line, Hydra, Python and saved traces read the declaration: `record.options()`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from llm_perf_opt.core.errors import UsageError

_KEY = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One declared field. `kind` is the type of its value, `None` apart."""

    name: str
    kind: type
    default: Any
    help: str
    metavar: str | None = None
    at_least: int | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[object], Any] | None = None  # text, or the list of a JSON file, to the value
    header_none: tuple[object, ...] = ()  # what the header of a trace says where nothing was set

    @property
    def text_kind(self) -> type:
        """The type that a command line or a configuration file gives: text where `read` makes the value of it."""
        return str if self.read is not None else self.kind

    def value_of(self, given: object) -> Any:
        """The checked value of what a person or a file gave."""
        if given is None and self.default is None:
            return None
        value = given if self.read is None or given is None else self.read(given)
        is_number = self.kind is float and type(value) is int
        if not is_number and (not isinstance(value, self.kind) or (self.kind is int and isinstance(value, bool))):
            raise UsageError(
                f"{self.name} cannot be {given!r}.",
                why=f"it must be of type {self.kind.__name__}",
                fix=f"give a value of that type, like {self.default!r}" if self.default is not None else "correct it",
            )
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Refuse a value outside the limits or the choices."""
        if value is None:
            return
        if self.at_least is not None and any(number < self.at_least for number in _numbers(value)):
            raise UsageError(
                f"{self.name} cannot be {min(_numbers(value))}.",
                why=f"it must be at least {self.at_least}",
                fix="give a larger number",
            )
        if self.choices and value not in self.choices:
            raise UsageError(
                f"{self.name} cannot be {value!r}.", why=f"known: {', '.join(self.choices)}", fix="pick one of these"
            )


def option(
    default: Any,
    *,
    help: str,
    metavar: str | None = None,
    at_least: int | None = None,
    choices: tuple[str, ...] = (),
    read: Callable[[object], Any] | None = None,
    header_none: tuple[object, ...] = (),
) -> Any:
    """A dataclass field with its declaration. `None` as default: not set, the model decides."""
    declared = {
        "help": help,
        "metavar": metavar,
        "at_least": at_least,
        "choices": choices,
        "read": read,
        "header_none": header_none,
    }
    return field(default=default, metadata={_KEY: declared})


class OptionRecord:
    """A frozen record with options as fields. Limits and choices are checked wherever a value comes from."""

    __slots__ = ()
    taken_by: ClassVar[str] = "The model"  # for help texts and errors

    def __post_init__(self) -> None:
        for name, declared in self.options().items():
            declared.check(getattr(self, name))

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """Every declared field by name."""
        if cls not in _DECLARED:
            _DECLARED[cls] = declared_options(cls)
        return _DECLARED[cls]

    @classmethod
    def make(cls, **given: object) -> Self:
        """The record of values as a person or a file gives them; a name that is not declared is refused."""
        known = cls.options()
        for name in given:
            if name not in known:
                import difflib

                near = difflib.get_close_matches(name, known, n=1)
                raise UsageError(
                    f"{cls.taken_by} takes no {name}.",
                    why=f"it takes: {', '.join(known)}",
                    fix=f"did you mean {near[0]}?" if near else f"leave {name} out",
                )
        return cls(**{name: known[name].value_of(value) for name, value in given.items()})

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their declared default."""
        values = {name: getattr(self, name) for name in self.options()}
        return {name: value for name, value in values.items() if value != self.options()[name].default}


_DECLARED: dict[type[OptionRecord], Mapping[str, Option]] = {}


def declared_options(record: type[Any]) -> Mapping[str, Option]:
    """Every field of a dataclass that `option` declares, in order."""
    hints = get_type_hints(record)
    return types.MappingProxyType(
        {
            field.name: Option(
                name=field.name, kind=_kind(hints[field.name]), default=field.default, **field.metadata[_KEY]
            )
            for field in fields(record)
            if _KEY in field.metadata and field.default is not MISSING
        }
    )


def read_grid(given: object) -> tuple[int, int]:
    """(columns, rows) of `"2x3"`, or of a pair."""
    if isinstance(given, (tuple, list)) and len(given) == 2 and all(type(side) is int for side in given):
        return given[0], given[1]
    if not (match := re.fullmatch(r"([1-9]\d?)x([1-9]\d?)", str(given))):
        raise UsageError(f"{given!r} is not a grid.", why="a grid is COLUMNSxROWS", fix="write it like 2x3")
    return int(match[1]), int(match[2])


def _kind(hint: Any) -> type:
    """`int` of `int | None`, `tuple` of `tuple[int, int] | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    kind = get_origin(hint) or hint
    assert isinstance(kind, type), f"an option has one type, not {hint}"
    return kind


def _numbers(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)
