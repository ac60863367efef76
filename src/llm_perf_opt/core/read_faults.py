"""Where in a document the value is that its record has no place for, and what was expected there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Hook = Callable[[type, Any], Any]
"""Makes a value of a type that msgspec does not know; raises ValueError("what was expected")."""

_PLACE = re.compile(r" - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<row>\d+)\]|(?P<entry>\[\.\.\.\])")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One value that does not fit: its place as a JSON path, what belongs there, and what is there."""

    where: str
    expected: str
    found: object


def find_fault(error: Exception, document: Any, record: Any, hook: Hook | None) -> Fault:
    """The fault behind an error of msgspec, in the document of plain values that it is about.

    msgspec gives a place without the keys of mappings (`$.edges[...]`). They are found by trying the entries of such a
    mapping again, half of them at a time, which takes the document apart.
    """
    message = _complaint(document, record, hook)
    if message is None:  # the text is at fault, not a value
        return Fault(where="the top level", expected=str(error), found=document)
    place = _PLACE.search(message)
    if place is None:
        return _worded("the top level", message, document, record)
    try:
        where, value = _followed(place["path"], document, record, hook)
        if place["key"]:
            value = _bad_entry(value, place["path"], document, record, hook)
    except (LookupError, TypeError, ValueError):  # the name of a key that reads like a place
        return _worded("the top level", message, document, record)
    return _worded(where, message[: place.start()], value, record)


def _followed(path: str, document: Any, record: Any, hook: Hook | None) -> tuple[str, Any]:
    """The place in our own spelling, and the value there."""
    where, value = "", document
    for step in _STEP.finditer(path):
        if step["name"]:
            where, value = f"{where}.{step['name']}", value[step["name"]]
        elif step["row"]:
            where, value = f"{where}[{step['row']}]", value[int(step["row"])]
        else:
            key = _bad_entry(value, path[: step.end()], document, record, hook)
            where, value = f"{where}[{key[:80]!r}]", value[key]
    return where.lstrip(".") or "the top level", value


def _complaint(document: Any, record: Any, hook: Hook | None) -> str | None:
    import msgspec

    try:
        msgspec.convert(document, type=record, dec_hook=hook)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _bad_entry(mapping: dict[str, Any], path: str, document: Any, record: Any, hook: Hook | None) -> str:
    """The key of an entry that is complained about; it is the only one left in `mapping`."""
    suspects = dict(mapping)
    while len(suspects) > 1:
        half = dict(list(suspects.items())[: len(suspects) // 2])
        mapping.clear()
        mapping.update(half)
        place = _PLACE.search(_complaint(document, record, hook) or "")
        is_among = place is not None and place["path"].startswith(path)
        suspects = half if is_among else {key: item for key, item in suspects.items() if key not in half}
    mapping.clear()
    mapping.update(suspects)
    return next(iter(suspects))


def _worded(where: str, complaint: str, value: object, record: Any) -> Fault:
    if missing := re.fullmatch(r"Object missing required field `(.*)`", complaint, re.DOTALL):
        return Fault(where=where, expected=f"the key {missing[1]!r}{_misspelt(missing[1], value, record)}", found=value)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint, re.DOTALL):
        return Fault(where=where, expected=f"a known key{near(unknown[1], record)}", found=unknown[1])
    if complaint.startswith("Invalid enum value"):
        return Fault(where=where, expected="one of the values that the schema lists", found=value)
    expected = re.sub(r", got .*$", "", complaint.removeprefix("Expected "), flags=re.DOTALL)
    expected = re.sub(r"`([^`]*)`", lambda types: _in_words(types[1]), expected)
    return Fault(where=where, expected=expected, found=value)


def _in_words(types: str) -> str:
    """`str | null` as `text or null`."""
    return " or ".join(_WORDS.get(name, name) for name in types.split(" | "))


def near(key: str, record: Any) -> str:
    """A hint at a key that is spelled alike, where there is one."""
    close = difflib.get_close_matches(key, sorted(_known_keys(record)), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _misspelt(key: str, value: object, record: Any) -> str:
    """The key that was probably meant to be this one."""
    others = set(value).difference(_known_keys(record)) if isinstance(value, dict) else ()
    close = difflib.get_close_matches(key, sorted(others), n=1)
    return f" (not {close[0][:80]!r})" if close else ""


def _known_keys(record: Any) -> Iterator[str]:
    """Every key anywhere in the records of a file."""
    import msgspec

    _, components = msgspec.json.schema_components([record], schema_hook=lambda _: {"type": "array"})
    for component in components.values():
        yield from component.get("properties", ())


def unknown_key(document: Any, known: Any, where: str = "") -> tuple[str, str] | None:
    """The place and name of the first key in `document` that `known`, of the same shape, does not have."""
    if isinstance(document, dict) and isinstance(known, dict):
        extra = next((key for key in document if key not in known), None)
        if extra is not None:
            return where.lstrip(".") or "the top level", extra
        pairs = [(document[key], known[key], f"{where}.{key[:80]}") for key in document]
    elif isinstance(document, list | tuple) and isinstance(known, list | tuple):
        pairs = [(*both, f"{where}[{row}]") for row, both in enumerate(zip(document, known, strict=False))]
    else:
        return None
    return next((found for pair in pairs if (found := unknown_key(*pair)) is not None), None)


def described(value: object) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return f"{value!r:.60}" if isinstance(value, float) else f"{value!s:.60}"
