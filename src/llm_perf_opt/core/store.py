"""What was found out once and is asked again: sealed entries under the user's cache folder, by the digest of their key.

An entry never changes. Its key holds everything that could make another one: the question, the code of this program as
it is installed, the versions of the libraries that took part. So whatever changes, the old entry is simply not found,
and in time it leaves, the one that was not used for longest first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import make_folder, write_whole
from llm_perf_opt.core.reading import FileKind, naming_file, read_bytes

log = logging.getLogger(__name__)

T = TypeVar("T")

VARIABLE = "LLM_PERF_OPT_CACHE"  # another folder, or `off`
OFF = "off"
SUFFIX = ".entry"
MOST_BYTES = 2**30  # of all entries; then the oldest leave
_KEEP_SHARE = 0.9  # what is left when they do, so that not every new entry makes one leave
_FORMAT = 1
_COLUMN = "q"  # the only type of a column in a record
NOT_INSTALLED = "not installed"
_MOST_CONTENT = 2**29
_ENTRY_FILE = FileKind(
    name="entry of the cache", fix="llm-perf-opt cache clear removes all of them", max_bytes=2**28, is_sealed=True
)
_LIBRARIES = ("torch", "transformers", "numpy", "duckdb", "aiconfigurator-core", "aisimulate")
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """One entry as a list shows it."""

    kind: str
    about: str  # in words: model, workload, device
    size_bytes: int
    used_at_s: float  # since 1970
    file: Path


def store_folder() -> Path | None:
    """Where the entries are; None: `LLM_PERF_OPT_CACHE=off`."""
    named = os.environ.get(VARIABLE, "")
    if named.lower() == OFF:
        return None
    if named:
        return Path(named)
    cache_folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache_folder) / "llm-perf-opt" / "store"


def entry_key(kind: str, ingredients: Mapping[str, object]) -> str:
    """The digest of all that an entry of this kind depends on, with this program and the libraries as installed."""
    ingredients_of_key = {"kind": kind, "format": _FORMAT, "made_by": program_digest(), "of": ingredients}
    return hashlib.sha256(json.dumps(ingredients_of_key, sort_keys=True, default=repr).encode()).hexdigest()


@cache
def program_digest() -> str:
    """Of the sources of this package, Python, and the libraries, none of which is loaded.

    A source is known by its path, size and time of change, by which Python knows whether a compiled file is still good.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    for name in ("llm-perf-opt", *_LIBRARIES):
        digest.update(f"{name} {installed_version(name)}\n".encode())
    for path, status in _sources(str(_PACKAGE)):
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry.path)
        elif entry.name.endswith((".py", ".toml", ".json")):
            yield entry.path, entry.stat()


@cache
def installed_version(name: str) -> str:
    """Of a library, without loading it; builds of one version count as one."""
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return NOT_INSTALLED


def find_entry(kind: str, key: str, decode: Callable[[bytes], T]) -> T | None:
    """What the entry holds; None where there is none. A damaged one is removed, and counts as none."""
    folder = store_folder()
    if folder is None or not (file := _file(folder, kind, key)).is_file():
        return None
    try:
        with naming_file(file):
            content = decode(read_entry(file))
    except PerfOptError as error:
        log.warning("%s %s It is made again.", error.what, error.why or "")
        file.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # the last use, by which the oldest leave
    return content


def read_entry(file: Path) -> bytes:
    """The content behind the header, as it was written."""
    raw = read_bytes(file, _ENTRY_FILE)
    line, _, content = raw.partition(b"\n")
    header = _header(line)
    if hashlib.sha256(content).hexdigest() != header.get("sha256"):
        raise _ENTRY_FILE.refusal("was changed after it was written", "its content does not have its digest")
    return _unpacked(content) if header.get("is_packed") else content


def _unpacked(packed: bytes) -> bytes:
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(packed, _MOST_CONTENT)
    except zlib.error as error:
        raise _ENTRY_FILE.refusal("cannot be unpacked", str(error)) from error
    if not unpacking.eof:
        raise _ENTRY_FILE.refusal("is too large", f"it holds more than {_MOST_CONTENT:,} bytes")
    return content


def _header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _ENTRY_FILE.refusal("has no header", str(error)[:200]) from None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _ENTRY_FILE.refusal("has no header", "it does not begin as an entry does")
    return header


def keep_entry(kind: str, key: str, about: str, content: bytes, *, is_packed: bool = True) -> None:
    """Write an entry, whole or not at all. Where it cannot be written the work is done again next time."""
    folder = store_folder()
    if folder is None:
        return
    try:
        write_entry(_file(folder, kind, key), about, content, is_packed=is_packed)
    except PerfOptError as error:
        log.warning("%s %s: it is not kept for the next time.", error.what, error.why or "")
        return
    _make_room(folder)


def write_entry(file: Path, about: str, content: bytes, *, is_packed: bool = True) -> None:
    """One entry: a line that says what it is, and the content with its digest in that line."""
    written = zlib.compress(content, 6) if is_packed else content
    digest = hashlib.sha256(written).hexdigest()
    line = json.dumps({"format": _FORMAT, "about": about, "is_packed": is_packed, "sha256": digest}).encode()
    if not file.parent.is_dir():
        make_folder(file.parent)
    write_whole(file, [line, b"\n", written])


def stored_record(
    kind: str, ingredients: Mapping[str, object] | None, about: str, record: type[T], make: Callable[[], T]
) -> T:
    """The record of an earlier answer to the same question, or one that is made now and kept.

    Without ingredients nobody can say what it depends on, and it is made each time.
    """
    if ingredients is None or store_folder() is None:
        return make()
    import msgspec

    def decode(content: bytes) -> T:
        try:
            return msgspec.msgpack.decode(content, type=record, dec_hook=_as_array)
        except msgspec.DecodeError as error:
            raise _ENTRY_FILE.refusal("is not as it is written here", str(error)[:300]) from None

    key = entry_key(kind, ingredients)
    stored = find_entry(kind, key, decode)
    if stored is None:
        stored = make()
        try:
            content = msgspec.msgpack.encode(stored, enc_hook=_as_bytes)
        except OverflowError:  # a count that no 64 bits hold
            return stored
        keep_entry(kind, key, about, content)
    return stored


def _as_bytes(column: object) -> bytes:
    if not isinstance(column, array) or column.typecode != _COLUMN:
        raise NotImplementedError(f"a {type(column).__name__} has no place in a record")
    return column.tobytes()


def _as_array(kind: object, content: object) -> object:
    """The column in bytes; whatever else a field may hold is checked against its type by who calls."""
    if kind is not array or not isinstance(content, bytes):
        return content
    column = array(_COLUMN)
    try:
        column.frombytes(content)
    except ValueError:  # no whole number of values
        return content
    return column


def _file(folder: Path, kind: str, key: str) -> Path:
    return folder / kind / f"{key}{SUFFIX}"


def entries() -> list[StoredEntry]:
    """All of them, the last used first; one that leaves meanwhile is left out."""
    folder = store_folder()
    listed = [] if folder is None else [_listed(file) for file, _ in _files(folder)]
    return sorted((entry for entry in listed if entry is not None), key=lambda entry: -entry.used_at_s)


def _listed(file: Path) -> StoredEntry | None:
    try:
        with file.open("rb") as opened:
            header = _header(opened.readline(2**16))
        status = file.stat()
    except (OSError, PerfOptError):
        return None
    return StoredEntry(
        kind=file.parent.name,
        about=str(header.get("about", "")),
        size_bytes=status.st_size,
        used_at_s=status.st_mtime,
        file=file,
    )


def clear() -> tuple[int, int]:
    """Remove every entry; how many there were, and their bytes."""
    folder = store_folder()
    files = [] if folder is None else list(_files(folder))
    for file, _ in files:
        file.unlink(missing_ok=True)
    return len(files), sum(status.st_size for _, status in files)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for file in folder.glob(f"*/*{SUFFIX}"):
        with contextlib.suppress(OSError):
            yield file, file.stat()


def _make_room(folder: Path) -> None:
    """Above the limit the entries that were not used for longest leave; another process may do the same."""
    files = sorted(_files(folder), key=lambda entry: entry[1].st_mtime)
    held = sum(status.st_size for _, status in files)
    if held <= MOST_BYTES:
        return
    for file, status in files:
        if held <= _KEEP_SHARE * MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        held -= status.st_size
