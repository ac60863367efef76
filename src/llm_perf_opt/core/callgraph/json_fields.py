"""Values out of an untrusted document: each function returns what it promises or says where the file is wrong.

Types are compared exactly, because `True` is an `int` to Python and `1.0` equals 1; whole lists are checked by C loops.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import accumulate
from typing import TypeVar

from llm_perf_opt.core.callgraph.json_values import LARGEST_INT, MAX_DEPTH, SMALLEST_INT
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.errors import PerfOptError

T = TypeVar("T")

LARGEST_COUNT = 2**63 - 1


def malformed(where: str, expected: str, found: object) -> PerfOptError:
    """The error for a value that is not what the schema asks for."""
    return PerfOptError(
        f"The call-graph file is malformed at {where[:200]}.",
        why=f"expected {expected}, found {_described(found)}",
        fix="trace the model again, or validate the file against callgraph/schema.json and correct it",
    )


def _described(value: object) -> str:
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return f"{value!r:.60}" if isinstance(value, float) else f"a {type(value).__name__}"


def record(value: Json, where: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Json]:
    """An object with these keys and no others: a misspelt key would otherwise read as a missing one."""
    if type(value) is not dict:
        raise malformed(where, "an object", value)
    for key in required:
        if key not in value:
            raise malformed(where, f"the key {key!r}", value)
    if len(value) > len(required):
        for key in value:
            if key not in required and key not in optional:
                raise malformed(where, f"one of the keys {', '.join((*required, *optional))}", key)
    return value


def by_key(value: Json, where: str, read: Callable[[Json, str], T]) -> dict[str, T]:
    """An object as a mapping, each value read in its turn."""
    if type(value) is not dict:
        raise malformed(where, "an object", value)
    require_text(value, where)
    return {key: read(item, f"{where}[{key[:80]!r}]") for key, item in value.items()}


def items(value: Json, where: str) -> list[Json]:
    """A list of anything."""
    if type(value) is not list:
        raise malformed(where, "a list", value)
    return value


def each(value: Json, where: str, read: Callable[[Json, str], T]) -> Iterator[T]:
    """A list, each item read in its turn."""
    return (read(item, f"{where}[{index}]") for index, item in enumerate(items(value, where)))


def text(value: Json, where: str) -> str:
    """A string that can be written out again."""
    require_text((value,), where)
    return str(value)


def texts(value: Json, where: str) -> tuple[str, ...]:
    """A list of strings."""
    require_text(items(value, where), where)
    return tuple(value)


def require_text(values: Iterable[Json], where: str) -> None:
    """Only strings, and no half of a surrogate pair: such text can be read from JSON and never be encoded again."""
    for value in values:
        if type(value) is not str:
            raise malformed(where, "text", value)
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise malformed(where, "text in valid Unicode", value.encode("ascii", "backslashreplace").decode())


def integer(value: Json, where: str, *, low: int = 0) -> int:
    """A whole number of at most 63 bits."""
    if type(value) is not int or not low <= value <= LARGEST_COUNT:
        raise malformed(where, f"a whole number from {low} to 2^63 - 1", value)
    return value


def integers(value: Json, where: str, *, low: int = 0) -> tuple[int, ...]:
    """A list of whole numbers of at most 63 bits."""
    numbers = items(value, where)
    _require_ints(numbers, where)
    if numbers and not (min(numbers) >= low and max(numbers) <= LARGEST_COUNT):
        raise malformed(where, f"whole numbers from {low} to 2^63 - 1", min(numbers, key=lambda n: n >= low))
    return tuple(numbers)


def counts(value: Json, where: str) -> dict[str, int]:
    """An object of counts by module path."""
    if type(value) is not dict:
        raise malformed(where, "an object", value)
    require_text(value, where)
    integers(list(value.values()), where)
    return value


def boolean(value: Json, where: str) -> bool:
    """True or false, and not 1 or 0."""
    if type(value) is not bool:
        raise malformed(where, "true or false", value)
    return value


def column(value: Json, where: str) -> array[int]:
    """A column from its first value and the differences between neighbours."""
    deltas = items(value, where)
    _require_ints(deltas, where)
    try:
        return array("q", accumulate(deltas))
    except OverflowError:
        raise malformed(where, "differences that add up to 64-bit numbers", value) from None


def free_form(value: Json, where: str) -> dict[str, Json]:
    """An object of any JSON values, within the bounds of what the builder lets in."""
    if type(value) is not dict:
        raise malformed(where, "an object", value)
    _require_free_form(value, where, 0)
    return value


def _require_free_form(value: Json, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise malformed(where, f"at most {MAX_DEPTH} levels", value)
    if type(value) is dict:
        require_text(value, where)
    if type(value) in (dict, list):
        for item in value.values() if type(value) is dict else value:
            _require_free_form(item, where, depth + 1)
    elif type(value) is str:
        require_text((value,), where)
    else:
        _require_scalar(value, where)


def _require_scalar(value: Json, where: str) -> None:
    if type(value) is int and not SMALLEST_INT <= value <= LARGEST_INT:
        raise malformed(where, "an integer of at most 64 bits", value)
    if type(value) is float and not math.isfinite(value):
        raise malformed(where, "a finite number", value)
    if type(value) not in (int, float, bool, type(None)):
        raise malformed(where, "a JSON value", value)


def _require_ints(numbers: list[Json], where: str) -> None:
    if not set(map(type, numbers)) <= {int}:
        raise malformed(where, "whole numbers", next(number for number in numbers if type(number) is not int))
