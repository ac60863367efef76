"""Files that are read back: bounded, strict, and decoded straight into typed records.

Every file passes the same steps: at most this many bytes, strict JSON or TOML, at most this many values and levels, a
schema version that this program reads, then the record. A file that fails one of them raises a `PerfOptError` that
names the file, the place in it, what was expected there, and what to do. Rules between fields stay in the record.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import split_seal
from llm_perf_opt.core.units import format_bytes

# msgspec takes 40 ms to import, so it is loaded by the functions that decode: `--help` does without it.

T = TypeVar("T")
log = logging.getLogger(__name__)

_LARGE_BYTES = 2**25  # takes about a second
_NUMBER_LIST = re.compile(rb"\[[-0-9,\s]{64,}\]")
_MOST_DIGITS = 40  # of an integer: more than 128 bits
_LONG_INTEGER = re.compile(rb"[0-9]{40}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """One kind of file: its name in messages, what to do about a bad one, and its bounds.

    `error` is `UsageError` for a file that a person writes and names on the command line.
    """

    name: str  # "call-graph file"
    fix: str
    schema_version: int | None = None  # the one that is read; None: the file has no version
    is_sealed: bool = False  # written by this program, with a seal that a changed byte breaks
    has_every_key: bool = False  # no key may be left out, not even where the field has a default
    max_bytes: int = 2**26
    max_elements: int = 2**23  # values in lists and objects, all levels together
    max_levels: int = 64
    stays_in_folder: bool = False  # a link out of the folder is refused, but into the cache that the folder lies in
    error: type[PerfOptError] = PerfOptError

    def refusal(self, problem: str, why: str) -> PerfOptError:
        """The error for a bad file of this kind."""
        return self.error(f"The {self.name} {problem}.", why=why, fix=self.fix)

    def malformed(self, where: str, expected: str, value: object) -> PerfOptError:
        """The error for a value that is not what belongs there."""
        return self.refusal(f"is malformed at {where[:200]}", f"expected {expected}, found {described(value)}")


MODEL_FILE = FileKind(name="file of the model", fix="fetch the file again", stays_in_folder=True, error=UsageError)
"""A JSON file that is published with a model: its configuration, how it is quantised, the index of its weights."""


def read_json(path: Path, record: type[T], kind: FileKind, *, hook: Hook | None = None) -> T:
    """The record in a JSON file."""
    raw = read_bytes(path, kind)
    with naming_file(path):
        return decode_json(raw, record, kind, hook=hook)


def read_foreign_json(path: Path, kind: FileKind) -> Any:
    """The plain values in a JSON file of another program, which may hold NaN and Infinity as Python writes them."""
    raw = read_bytes(path, kind)
    with naming_file(path):
        return parse_foreign_json(raw, kind)


def parse_foreign_json(raw: bytes, kind: FileKind) -> Any:
    """The plain values in a JSON text of another program, which may hold NaN and Infinity as Python writes them."""
    if raw.count(b",") >= kind.max_elements:
        raise kind.refusal("is too large", f"it holds more than {kind.max_elements:,} values")
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _not_valid("JSON", str(error), kind) from None
    _require_acceptable(document, kind)
    return document


def read_bytes(path: Path, kind: FileKind) -> bytes:
    """The content of a regular file, as far as it is within the bounds of its kind."""
    try:
        if not path.is_file():
            raise kind.error(f"There is no {kind.name} at {path}.", why="nothing is there, or not a file", fix=kind.fix)
        if kind.stays_in_folder:
            require_own_files(path.parent, [path])
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > _LARGE_BYTES:  # whoever decodes it lets no other thread run
                log.info("Reading %s, %s ...", path, format_bytes(size))
            raw = file.read(kind.max_bytes + 1)
    except OSError as error:
        raise kind.error(f"{path} could not be read.", why=str(error), fix="check the permissions") from error
    except ValueError as error:  # a name that no file can have
        raise kind.error(f"There is no {kind.name} at {str(path)!r}.", why=str(error), fix=kind.fix) from error
    if len(raw) > kind.max_bytes:
        raise kind.error(
            f"{path} is larger than {kind.max_bytes:,} bytes.",
            why=f"no {kind.name} needs as much, and a file beyond it could exhaust the memory",
            fix=f"check that it is a {kind.name}",
        )
    return raw


def require_own_files(folder: Path, files: Iterable[Path]) -> None:
    """Refuse files of a model that are links to another place; snapshots of huggingface_hub are folders of links."""
    try:
        place = folder.resolve()
        blobs = [place.parents[1] / "blobs"] if place.parent.name == "snapshots" and len(place.parents) > 1 else []
        resolved = ((file, file.resolve()) for file in files)
        stray = next((pair for pair in resolved if not any(map(pair[1].is_relative_to, (place, *blobs)))), None)
    except (OSError, RuntimeError) as error:  # a link to itself
        raise PerfOptError(f"{folder} cannot be read.", why=str(error), fix="fetch the folder again") from error
    if stray is not None:
        raise UsageError(
            f"{stray[0]} leads out of its folder.",
            why=f"it is a link to {stray[1]}, and a model is read from its own folder alone",
            fix="copy the file into the folder, or point at the folder that it lies in",
        )


@contextmanager
def naming_file(path: Path | str) -> Iterator[None]:
    """An error from inside names the file that it is about."""
    try:
        yield
    except PerfOptError as error:
        kind = UsageError if isinstance(error, UsageError) else PerfOptError
        raise kind(f"{path}: {error.what}", why=error.why, fix=error.fix) from error


def decode_json(raw: bytes, record: type[T], kind: FileKind, *, hook: Hook | None = None) -> T:
    """The record in a JSON text.

    Duplicate keys, depth and version are found in a copy without the long lists of numbers, which are most of a trace.
    """
    import msgspec

    if raw.count(b",") >= kind.max_elements:
        raise kind.refusal("is too large", f"it holds more than {kind.max_elements:,} values")
    raw, seal = split_seal(raw) if kind.is_sealed else (raw, None)
    _require_acceptable(_outline(raw, kind), kind)
    try:
        decoded = msgspec.json.decode(raw, type=record, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise _malformed(error, _strict_json(raw, kind), record, kind, hook) from None
    except (msgspec.DecodeError, RecursionError) as error:
        why = "a text holds half of a surrogate pair" if _SURROGATE.search(raw) else str(error)
        raise _not_valid("JSON", why, kind) from None
    if not isinstance(decoded, msgspec.Struct):  # a Struct says by itself which keys it takes
        _require_same_keys(json.loads(raw), decoded, record, kind)
    if seal is not None:  # last: what is wrong in itself is named by its place
        seal.require(kind)
    return decoded


def parse_toml(raw: bytes, kind: FileKind) -> dict[str, Any]:
    """The tables of a TOML text. Numbers with a point are `Decimal`, exactly as the file has them."""
    import tomllib
    from decimal import Decimal

    try:
        return tomllib.loads(raw.decode("utf-8"), parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:  # syntax, UTF-8, or a number of thousands of digits
        raise _not_valid("TOML", str(error), kind) from None


def as_record(document: Any, record: type[T], kind: FileKind, *, hook: Hook | None = None) -> T:
    """The record in a document of plain values. Looking for a fault takes the document apart."""
    import msgspec

    _require_acceptable(document, kind)
    try:
        converted = msgspec.convert(document, type=record, dec_hook=hook)
    except UnicodeEncodeError:
        raise kind.refusal("is malformed", "a text holds half of a surrogate pair") from None
    except msgspec.ValidationError as error:
        raise _malformed(error, document, record, kind, hook) from None
    _require_same_keys(document, converted, record, kind)
    return converted


def _outline(raw: bytes, kind: FileKind) -> Any:
    """The document without its long lists of numbers. An error has its position in the text as it is."""
    try:
        return _strict_json(_NUMBER_LIST.sub(b"[]", raw), kind)
    except PerfOptError:
        return _strict_json(raw, kind)


def _strict_json(raw: bytes, kind: FileKind) -> Any:
    """What the standard parser would let pass is refused: duplicate keys, NaN, numbers beyond any use."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise _not_valid("JSON", f"the key {twice[:80]!r} occurs twice in one object", kind)
        return document

    def refuse_constant(name: str) -> NoReturn:
        raise _not_valid("JSON", f"{name} is not a JSON number", kind)

    def finite(text: str) -> float:
        if math.isinf(value := float(text)):
            raise _not_valid("JSON", f"the number {text[:40]} is too large", kind)
        return value

    def bounded(text: str) -> int:
        if len(text) > _MOST_DIGITS:
            raise _not_valid("JSON", f"the number {text[:40]}... is too large", kind)
        return int(text)

    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=refuse_constant,
            parse_float=finite,
            parse_int=bounded if _LONG_INTEGER.search(raw) else None,  # a function of ours for each number takes time
        )
    except RecursionError:
        raise _not_valid("JSON", "it is nested too deeply", kind) from None
    except ValueError as error:  # bad syntax, bad UTF-8, or an integer of thousands of digits
        raise _not_valid("JSON", str(error), kind) from None


def _not_valid(language: str, why: str, kind: FileKind) -> PerfOptError:
    return kind.refusal(f"is not valid {language}", why[:300])


def _require_acceptable(document: Any, kind: FileKind) -> None:
    """Not nested too deeply, and of the version that is read."""
    level: list[Any] = [[document]]
    for _ in range(kind.max_levels + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    if level:
        raise kind.refusal("is nested too deeply", f"it has more than {kind.max_levels} levels")
    if kind.schema_version is None:
        return
    if not isinstance(document, dict):
        raise kind.malformed("the top level", "an object", document)
    version = document.get("schema_version")
    if type(version) is not int:
        raise kind.malformed("schema_version", "a whole number", version)
    if version != kind.schema_version:
        shown = version if abs(version) < 10**9 else "out of range"
        raise kind.refusal(
            f"has schema version {shown}, this program reads version {kind.schema_version}",
            "a key may mean something else in another version",
        )


def _malformed(error: Exception, document: Any, record: type[T], kind: FileKind, hook: Hook | None) -> PerfOptError:
    fault = find_fault(error, document, record, hook)
    return kind.malformed(fault.where, fault.expected, fault.value)


def _require_same_keys(document: Any, decoded: T, record: type[T], kind: FileKind) -> None:
    """No key that the record has no field for: a misspelt key would otherwise read as a missing one."""
    import msgspec

    written = msgspec.to_builtins(decoded, enc_hook=str)
    if (unknown := unknown_key(document, written)) is not None:
        where, key = unknown
        raise kind.malformed(where, f"a known key{near(key, record)}", key)
    if kind.has_every_key and (missing := unknown_key(written, document)) is not None:
        raise kind.malformed(missing[0], f"the key {missing[1]!r}", document)


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
    value: object


def find_fault(error: Exception, document: Any, record: Any, hook: Hook | None) -> Fault:
    """The fault behind an error of msgspec, in the document of plain values that it is about.

    msgspec gives a place without the keys of mappings (`$.edges[...]`). They are found by trying the entries of such a
    mapping again, half of them at a time, which takes the document apart.
    """
    message = _complaint(document, record, hook)
    if message is None:  # the text is at fault, not a value
        return Fault(where="the top level", expected=str(error), value=document)
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
        return Fault(where=where, expected=f"the key {missing[1]!r}{_misspelt(missing[1], value, record)}", value=value)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint, re.DOTALL):
        return Fault(where=where, expected=f"a known key{near(unknown[1], record)}", value=unknown[1])
    if complaint.startswith("Invalid enum value"):
        return Fault(where=where, expected="one of the values that the schema lists", value=value)
    expected = re.sub(r", got .*$", "", complaint.removeprefix("Expected "), flags=re.DOTALL)
    expected = re.sub(r"`([^`]*)`", lambda types: _in_words(types[1]), expected)
    return Fault(where=where, expected=expected, value=value)


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
    return next((unknown for pair in pairs if (unknown := unknown_key(*pair)) is not None), None)


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


def filled(record: type[T], source: object, /, **given: object) -> T:
    """A dataclass or Struct of that type: each field is `given`, or else the attribute of that name of `source`.

    Values are taken as they are. A field that neither has raises, also where the record has a default for it, so that
    no figure is lost by a name.
    """
    kind: Any = record
    names = (
        kind.__struct_fields__
        if hasattr(kind, "__struct_fields__")
        else [field.name for field in fields(kind) if field.init]
    )
    return record(**{name: getattr(source, name) for name in names if name not in given}, **given)


def all_filled(record: type[T], sources: Iterable[object]) -> tuple[T, ...]:
    """A record for each source, with the fields of the same names."""
    return tuple(filled(record, source) for source in sources)
