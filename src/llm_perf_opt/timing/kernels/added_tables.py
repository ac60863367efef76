"""Take kernel tables out of a wheel or a folder, and nothing else: no code, no dependencies, no file elsewhere.

A wheel is foreign: names that are no place of a table are never written, links, repeated names, encrypted and oversized
content are refused, and a set appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.parser import BytesHeaderParser
from pathlib import Path, PurePosixPath

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import cannot_write, make_folder, scratch_folder, sealed_text
from llm_perf_opt.timing.kernels.table_sets import (
    IN_PACKAGE,
    MANIFEST,
    NOT_STATED,
    TABLE,
    Manifest,
    TableSet,
    added_sets,
    table_sets,
    tables_home,
)

MOST_ARCHIVE_BYTES = 2**30
MOST_MEMBERS = 100_000  # of an archive, tables or not
MOST_TABLE_BYTES = 2**26
MOST_BYTES = 2**31  # of all tables together
_MOST_TEXT = 2**20  # of a licence, and of what a wheel says of itself
_MAGIC = b"PAR1"  # the first and the last four bytes of a Parquet file
_PLACE = re.compile(r"(?:.*/)?systems/data/((?:[A-Za-z0-9_+-][A-Za-z0-9_.+-]*/){4}[A-Za-z0-9_+-]+_perf\.parquet)")
_LICENCE = re.compile(r"[^/]+\.dist-info/(?:licenses/)?((?:LICEN[SC]E|NOTICE|THIRD_PARTY_NOTICES)[A-Za-z0-9_.-]*)")
_ABOUT = re.compile(r"[^/]+\.dist-info/METADATA")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a source offers: places of tables and names of licences, each with a way to read it."""

    tables: Mapping[str, Callable[[], bytes]]
    licences: Mapping[str, Callable[[], bytes]]
    about: bytes


def add_tables(source: Path) -> TableSet:
    """Add the tables of a wheel or of a folder to the user's data, where the next command uses them."""
    if source.is_dir():
        return _kept(source, _in_folder(source))
    if not source.is_file():
        raise UsageError(
            f"There is no wheel and no folder at {str(source)[:200]}.",
            why="nothing is there",
            fix="pip download --no-deps aisimulate fetches a wheel without its dependencies",
        )
    if source.stat().st_size > MOST_ARCHIVE_BYTES:
        raise _refused(source, f"it is larger than {MOST_ARCHIVE_BYTES:,} bytes")
    with _readable(source), zipfile.ZipFile(source) as archive:
        return _kept(source, _in_wheel(source, archive))


def remove_tables(key: str) -> TableSet:
    """Remove an added set; installed packages are pip's, and a named folder is the user's."""
    for added in added_sets():
        if added.key == key:
            with scratch_folder(tables_home()) as aside:  # a set leaves whole, as it came
                added.folder.rename(aside / "leaving")
            return added
    others = [tables.key for tables in table_sets()]
    raise UsageError(
        f"No added set of tables is named {key[:100]!r}.",
        why=f"there are: {', '.join(added.key for added in added_sets()) or 'none'}",
        fix="it is an installed package: pip uninstall" if key in others else "llm-perf-opt tables list shows them",
    )


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Whatever a broken archive raises is one error that names it."""
    try:
        yield
    except PerfOptError:
        raise
    except _BAD_ZIP as error:
        raise _refused(source, f"it cannot be unpacked: {' '.join(str(error).split())[:200]}") from error


def _refused(source: Path, why: str) -> PerfOptError:
    return PerfOptError(
        f"No tables were taken from {source.name[:100]!r}.",
        why=why,
        fix="fetch it again, or take another release: pip download --no-deps aisimulate",
    )


def _in_wheel(source: Path, archive: zipfile.ZipFile) -> _Found:
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise _refused(source, f"it holds more than {MOST_MEMBERS:,} files")
    tables: dict[str, Callable[[], bytes]] = {}
    licences: dict[str, Callable[[], bytes]] = {}
    about = b""
    for member in members:
        if (place := _PLACE.fullmatch(member.filename)) is not None:
            if place[1] in tables:
                raise _refused(source, f"it holds {place[1]} twice")
            tables[place[1]] = _reader(source, archive, member, MOST_TABLE_BYTES)
        elif (licence := _LICENCE.fullmatch(member.filename)) is not None:
            licences[licence[1]] = _reader(source, archive, member, _MOST_TEXT)
        elif _ABOUT.fullmatch(member.filename):
            about = _reader(source, archive, member, _MOST_TEXT)()
    return _Found(tables, licences, about)


def _reader(source: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> Callable[[], bytes]:
    """Reads one member: a regular file of at most that many bytes, whatever its header says."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _refused(source, f"{member.filename[:200]} is no regular file")

    def read() -> bytes:
        with archive.open(member) as opened:
            content = opened.read(most + 1)
        if len(content) > most:
            raise _refused(source, f"{member.filename[:200]} is larger than {most:,} bytes")
        return content

    return read


def _in_folder(source: Path) -> _Found:
    roots = (source, source / IN_PACKAGE, source / "data", *sorted(path / IN_PACKAGE for path in source.glob("*")))
    root = next((path for path in roots if path.is_dir() and any(path.glob(TABLE))), source)
    place = source.resolve()
    tables = {path.relative_to(root).as_posix(): path for path in sorted(root.glob(TABLE))}
    for path in tables.values():
        if path.is_symlink() or not path.resolve().is_relative_to(place):
            raise _refused(source, f"{path.name} leads out of the folder")
    about = next(iter(sorted(source.glob("*.dist-info/METADATA"))), None)
    texts = [path for path in sorted(source.glob("*.dist-info/**/*")) if path.is_file() and not path.is_symlink()]
    named = ((_LICENCE.fullmatch(PurePosixPath(path.relative_to(source)).as_posix()), path) for path in texts)
    return _Found(
        {name: _file_reader(source, path, MOST_TABLE_BYTES) for name, path in tables.items()},
        {match[1]: _file_reader(source, path, _MOST_TEXT) for match, path in named if match is not None},
        b"" if about is None else _file_reader(source, about, _MOST_TEXT)(),
    )


def _file_reader(source: Path, path: Path, most: int) -> Callable[[], bytes]:
    def read() -> bytes:
        with _readable(source), path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise _refused(source, f"{path.name} is larger than {most:,} bytes")
        return content

    return read


def _kept(source: Path, offered: _Found) -> TableSet:
    """Write all of it into a folder of its own, and give that its name when it is whole."""
    if not offered.tables:
        raise _refused(source, "it holds no systems/data/SYSTEM/FAMILY/ENGINE/VERSION/NAME_perf.parquet")
    home = tables_home()
    make_folder(home)
    with scratch_folder(home) as folder:
        digest, size_bytes = hashlib.sha256(), 0
        for place, read in sorted(offered.tables.items()):
            content = read()
            size_bytes += len(content)
            if size_bytes > MOST_BYTES:
                raise _refused(source, f"its tables are larger than {MOST_BYTES:,} bytes")
            if len(content) < 12 or not content.startswith(_MAGIC) or not content.endswith(_MAGIC):
                raise _refused(source, f"{place} is no Parquet file")
            digest.update(f"{place} {len(content)}\n".encode() + content)
            _write(folder / place, content)
        for name, read in offered.licences.items():
            _write(folder / "licences" / name, read())
        manifest = _manifest(source, offered, digest.hexdigest(), size_bytes)
        _write(folder / MANIFEST, sealed_text(json.dumps(asdict(manifest), indent=1)).encode())
        _named(folder, home / f"{manifest.name}-{manifest.version}", manifest)
    return next(added for added in added_sets() if (added.name, added.version) == (manifest.name, manifest.version))


def _manifest(source: Path, offered: _Found, digest: str, size_bytes: int) -> Manifest:
    """What the wheel says of itself, as far as it can be the name of a folder."""
    said = BytesHeaderParser().parsebytes(offered.about)
    name, version = str(said.get("Name", "")), str(said.get("Version", ""))
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "-", source.resolve().name).lstrip(".-")[:60]
    licence = " ".join(str(said.get("License-Expression") or said.get("License") or NOT_STATED).split())[:100]
    return Manifest(
        schema_version=1,
        name=name if _WORD.fullmatch(name) else plain or "tables",
        version=version if _WORD.fullmatch(version) else digest[:12],
        licence=licence,
        source=source.name[:200],
        sha256=digest,
        tables=len(offered.tables),
        size_bytes=size_bytes,
    )


def _write(path: Path, content: bytes) -> None:
    """In a folder that has no name yet: nobody reads it before it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from error


def _named(folder: Path, target: Path, manifest: Manifest) -> None:
    """The folder under its name; the same set that is there already stays, and another one is refused."""
    if not target.exists():
        try:
            folder.rename(target)
            return
        except OSError as error:
            if not target.is_dir():  # else another process has just added one of this name
                raise cannot_write(target, error) from error
    if not any(added.folder == target and added.stamp == manifest.sha256 for added in added_sets()):
        raise UsageError(
            f"There are other tables named {target.name}.",
            why=f"{target} holds others than {manifest.source}",
            fix=f"llm-perf-opt tables remove {target.name}, and add them again",
        )
    (target / MANIFEST).touch()  # the last that was added is the one that is used


def table_size(tables: TableSet) -> tuple[int, int]:
    """How many tables a set has, and their bytes."""
    sizes = [path.stat().st_size for path in tables.folder.glob(TABLE)]
    return len(sizes), sum(sizes)
