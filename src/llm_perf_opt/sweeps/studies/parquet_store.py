"""The store of a study: Parquet files through pyarrow on any path that fsspec knows; the only file that sees either.

`<results>/study=<name>/model=<name>/part-<task>-<inputs>-<run>-<digest>.parquet`. A part is named by the hash of its
inputs, the run that wrote it and the digest of its bytes: one that has that digest is finished, two runs never write
the same name, and nothing is removed but what a dead process left half. `_study.json` lists the parts of the study as
it is declared now; others are of earlier declarations.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import (
    PREFIX,
    cannot_write,
    check_seal,
    make_folder,
    move_whole,
    remove_left_behind,
    sealed_lines,
    temporary_path,
)
from llm_perf_opt.core.reading import FileKind, decode_json, naming_file
from llm_perf_opt.sweeps.studies.study_columns import BY_NAME, COLUMNS, FAILED, SCHEMA_VERSION

INSTALL = "pip install 'llm-perf-opt[study]'"
ROWS_PER_GROUP = 1 << 16
_PIECE_BYTES = 1 << 22
_IDENTITY = b"llm_perf_opt_part"  # in the metadata of a part: which one it is, whatever it is called
_FOREIGN = {"botocore.exceptions": "BotoCoreError", "aiohttp": "ClientError"}  # errors of storages that are no OSError


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise PerfOptError("pyarrow is not installed.", why="results are Parquet files", fix=INSTALL) from error
    return pyarrow


def _fsspec() -> Any:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise PerfOptError("fsspec is not installed.", why="results may be on any storage", fix=INSTALL) from error
    return fsspec


def require_packages() -> None:
    """Refuse, before any work, where one of the two is missing."""
    _pyarrow()
    _fsspec()


@cache
def arrow_schema() -> Any:
    """The published columns as a schema of pyarrow."""
    pyarrow = _pyarrow()
    types = {"string": pyarrow.string(), "int64": pyarrow.int64(), "double": pyarrow.float64(), "bool": pyarrow.bool_()}
    fields = [pyarrow.field(column.name, types[column.type], metadata={"unit": column.unit}) for column in COLUMNS]
    return pyarrow.schema(fields, metadata={"llm_perf_opt_study_schema": str(SCHEMA_VERSION)})


def table_of(values: Mapping[str, Any], size: int) -> Any:
    """Rows from columns and from single values, which stand for all rows; a column that is not named is unknown."""
    pyarrow, schema = _pyarrow(), arrow_schema()
    arrays = [_array(pyarrow, values.get(field.name), field.type, size) for field in schema]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _array(pyarrow: Any, value: Any, kind: Any, size: int) -> Any:
    if value is None:
        return pyarrow.nulls(size, kind)
    if isinstance(value, str | int | float | bool):
        return pyarrow.repeat(pyarrow.scalar(value, kind), size)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and dtype.kind != "O":
        return pyarrow.array(value).cast(kind)
    fitting = [_plain(item) for item in value]
    return pyarrow.array(fitting, type=kind)


def _plain(value: Any) -> Any:
    """None for a whole number that 64 bits do not hold; the row says so."""
    return None if isinstance(value, int) and abs(value) >= 2**63 else value


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows one by one."""
    pyarrow = _pyarrow()
    names = [column.name for column in COLUMNS]
    plain = [{name: _plain(row.get(name)) for name in names} for row in rows]
    return pyarrow.Table.from_pylist(plain, schema=arrow_schema())


class _Hashed(io.RawIOBase):
    """A stream that is written to, with the digest of what went through."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.sha256 = stream, hashlib.sha256()

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def write(self, piece: Any) -> int:
        """Pass it on."""
        self.sha256.update(piece)
        self._stream.write(piece)
        return len(memoryview(piece).cast("B"))


@dataclass(slots=True)
class _Staged:
    """A file that is being written, and the name that it gets."""

    stream: _Hashed
    name: str = ""


@dataclass(frozen=True, slots=True)
class StudyStore:
    """The results of a study at one place."""

    root: str  # any path or address that fsspec knows

    def _found(self) -> tuple[Any, str]:
        """The file system, and the path as it names it."""
        try:
            files, path = _fsspec().core.url_to_fs(self.root)
        except ImportError as error:
            raise UsageError(
                f"{self.root} cannot be reached.",
                why=f"its package is not installed: {' '.join(str(error).split())[:200]}",
                fix="install what fsspec names for it, such as s3fs for s3://, or use a folder",
            ) from error
        except ValueError as error:
            raise UsageError(
                f"{self.root} is not a place for results.",
                why=" ".join(str(error).split())[:200],
                fix="name a folder, or an address that fsspec knows, such as s3://bucket/results",
            ) from error
        return files, str(path).rstrip("/")

    @property
    def filesystem(self) -> Any:
        """The file system of that place."""
        return self._found()[0]

    @property
    def path(self) -> str:
        """The path as the file system names it."""
        return self._found()[1]

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        protocol = self.filesystem.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    @contextmanager
    def reached(self) -> Iterator[None]:
        """What a storage raises is told with its address."""
        loaded = [(sys.modules.get(module), name) for module, name in _FOREIGN.items()]
        foreign = tuple(getattr(module, name) for module, name in loaded if module is not None)
        try:
            yield
        except (OSError, *foreign) as error:
            raise PerfOptError(
                f"{self.root} cannot be read or written.",
                why=" ".join(str(error).split())[:300] or type(error).__name__,
                fix="check the address, the network and the rights",
            ) from error

    def folder(self, study: str, model: str | None = None) -> str:
        """The folder of a study, or of a model in it."""
        base = f"{self.path}/study={study}"
        return base if model is None else f"{base}/model={model}"

    def names(self, folder: str) -> list[str]:
        """What is in a folder, by name; no character of the folder's own name is a pattern."""
        files = self.filesystem
        files.invalidate_cache()
        with self.reached():
            try:
                names = files.ls(folder, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            except ValueError as error:  # an address without a bucket, a name that no file can have
                raise UsageError(
                    f"{self.root} is not a place for results.", why=str(error)[:200], fix="check the address"
                ) from error
        return sorted(str(name).rstrip("/").rpartition("/")[2] for name in names)

    def studies(self) -> tuple[str, ...]:
        """The names of the studies that are here."""
        return tuple(name.removeprefix("study=") for name in self.names(self.path) if name.startswith("study="))

    def parts(self, study: str) -> dict[str, list[str]]:
        """Stem -> paths of what is named like a finished part of it; those without failures first."""
        by_stem: dict[str, list[str]] = {}
        for path in self.part_paths(study):
            stem = part_stem(path)
            if stem is not None:
                by_stem.setdefault(stem, []).append(path)
        return {stem: sorted(paths, key=lambda path: (len(path), path)) for stem, paths in by_stem.items()}

    def part_paths(self, study: str) -> list[str]:
        """Every Parquet file in the folders of a study, whatever it is called."""
        folder = self.folder(study)
        models = [name for name in self.names(folder) if name.startswith("model=")]
        return [
            f"{folder}/{model}/{name}"
            for model in models
            for name in self.names(f"{folder}/{model}")
            if name.endswith(".parquet") and not name.startswith(PREFIX)
        ]

    def write(self, study: str, model: str, stem: str, tables: Iterable[Any], run: str) -> tuple[StudyPart, int]:
        """Write tables as one part, whole or not at all; the part, and how many rows failed."""
        pyarrow, failed, rows = _pyarrow(), 0, 0
        with self._staged(self.folder(study, model)) as staged:
            with _writer(pyarrow, staged.stream, f"{study}/{model}/{stem}") as writer:
                for table in tables:
                    failed += pyarrow.compute.sum(pyarrow.compute.equal(table.column("status"), FAILED)).as_py() or 0
                    rows += table.num_rows
                    writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            sha256 = staged.stream.sha256.hexdigest()
            staged.name = part_name(stem, run, sha256, failed=failed > 0)
        columns = columns_digest(arrow_schema())
        return StudyPart(file=f"model={model}/{staged.name}", sha256=sha256, rows=rows, columns=columns), failed

    @contextmanager
    def _staged(self, folder: str) -> Iterator[_Staged]:
        """A file under a temporary name, which gets its own when all of it is written."""
        if self.is_local:
            place = Path(folder)
            make_folder(place)
            try:
                with temporary_path(place) as partial:
                    with partial.open("xb") as stream:
                        staged = _Staged(_Hashed(stream))
                        yield staged
                    move_whole(partial, place / staged.name)
            except OSError as error:
                raise cannot_write(place, error) from error
            return
        files = self.filesystem
        name = f"{folder}/{PREFIX}{os.getpid()}-{uuid4().hex}"
        with self.reached():
            files.makedirs(folder, exist_ok=True)
            try:
                with files.open(name, "wb") as stream:
                    staged = _Staged(_Hashed(stream))
                    yield staged
                files.mv(name, f"{folder}/{staged.name}")
            except BaseException:
                with suppress(OSError):
                    files.rm(name)
                raise

    def checked(self, path: str, *, copy: Path | None = None) -> StudyPart:
        """The part at a path, if its bytes are those that were written; `copy` is where they go on the way."""
        pyarrow, digest = _pyarrow(), hashlib.sha256()
        try:
            with self.filesystem.open(path, "rb") as stream, (copy or Path(os.devnull)).open("wb") as copied:
                while piece := stream.read(_PIECE_BYTES):
                    digest.update(piece)
                    copied.write(piece)
            if not digest.hexdigest().startswith(part_digest(path) or "-"):
                raise _damaged(path, "its content does not have the digest in its name")
            with self.filesystem.open(path, "rb") if copy is None else copy.open("rb") as stream:
                part_file = pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)
                schema, rows = part_file.schema_arrow, part_file.metadata.num_rows
        except (OSError, pyarrow.ArrowException) as error:
            raise _damaged(path, " ".join(str(error).split())[:200]) from error
        _require_columns(path, schema)
        *_, study, model, name = path.split("/")
        written = f"{study.removeprefix('study=')}/{model.removeprefix('model=')}/{part_stem(name)}"
        if (schema.metadata or {}).get(_IDENTITY) != written.encode():
            raise _damaged(path, "it was written as another part")
        columns = columns_digest(schema)
        return StudyPart(file=f"{model}/{name}", sha256=digest.hexdigest(), rows=rows, columns=columns)

    def is_current(self, part: StudyPart, rows: int) -> bool:
        """Whether it has all rows of a task, in the columns of this release."""
        own = columns_digest(arrow_schema())
        return part.rows == rows and part.columns == own

    def read(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of some files, one by one: rows of an earlier run that may be kept."""
        pyarrow = _pyarrow()
        rows: list[dict[str, Any]] = []
        for path in paths:
            with self.filesystem.open(path, "rb") as stream:
                rows += pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True).read().to_pylist()
        return rows

    def write_manifest(self, manifest: StudyManifest) -> None:
        """What the study is made of now."""
        with self._staged(self.folder(manifest.study)) as staged:
            staged.stream.write(manifest.text())
            staged.name = MANIFEST

    def manifest(self, study: str) -> StudyManifest | None:
        """The manifest as it was written last; None: there is none."""
        place = f"{self.folder(study)}/{MANIFEST}"
        with self.reached():
            self.filesystem.invalidate_cache()
            try:
                with self.filesystem.open(place, "rb") as stream:
                    raw = stream.read(MANIFEST_FILE.max_bytes + 1)
            except FileNotFoundError:
                return None
        with naming_file(place):
            return read_manifest(raw)

    def finished(self, study: str) -> dict[str, StudyPart | None]:
        """Path of each part of the study as it is declared now -> what the manifest says of it.

        None: a run that has not ended wrote it, and its name alone says what its bytes must be.
        """
        listed = self.manifest(study)
        parts = self.parts(study)
        if listed is None:
            if parts:
                raise PerfOptError(
                    f"The study {study!r} at {self.root} has no {MANIFEST}.",
                    why="without it nobody knows which files belong to its present declaration",
                    fix=RUN_AGAIN,
                )
            return {}
        folder, paths = self.folder(study), dict[str, StudyPart | None]()
        for stem in listed.stems:
            if (part := listed.parts.get(stem)) is not None:
                paths[f"{folder}/{part.file}"] = part
            elif stem in parts:
                paths[parts[stem][0]] = None
        return paths

    def clear_left_behind(self, study: str) -> None:
        """Remove what dead processes left half written."""
        if self.is_local:
            for name in self.names(folder := self.folder(study)):
                if name.startswith("model="):
                    remove_left_behind(Path(folder) / name)


def _damaged(path: str, why: str) -> PerfOptError:
    return PerfOptError(f"{path} is not a finished part of its study.", why=why, fix=RUN_AGAIN)


def _require_columns(path: str, schema: Any) -> None:
    """Columns of the published list, each with its type; an earlier release has fewer."""
    own = {field.name: field.type for field in arrow_schema()}
    for field in schema:
        if field.name not in BY_NAME or field.type != own[field.name]:
            raise _damaged(path, f"its column {field.name[:80]!r} is {field.type}, which no study writes")
    if "status" not in schema.names:
        raise _damaged(path, "it has no column 'status'")


def _writer(pyarrow: Any, stream: Any, identity: str) -> Any:
    """Whole numbers as differences, reals byte by byte of the same weight, texts as dictionaries: all of it small."""
    schema = arrow_schema()
    schema = schema.with_metadata({**schema.metadata, _IDENTITY: identity.encode()})
    texts = [field.name for field in schema if field.type == pyarrow.string()]
    encodings = {
        field.name: "DELTA_BINARY_PACKED" if field.type == pyarrow.int64() else "BYTE_STREAM_SPLIT"
        for field in schema
        if field.type in (pyarrow.int64(), pyarrow.float64())
    }
    return pyarrow.parquet.ParquetWriter(
        stream, schema, compression="zstd", use_dictionary=texts, column_encoding=encodings, write_page_checksum=True
    )


# What a study is made of: the parts of its present declaration, each with its digest, its rows and its columns.
#
# The name of a part holds the digest of its bytes, so that parts of a run that was killed can be told from damaged ones
# without a manifest: `part-<task>-<inputs>-<run>-<digest>[-failures].parquet`.

MANIFEST = "_study.json"
MANIFEST_VERSION = 2
FAILURES = "-failures"  # in the name of a file with points that failed
SUFFIX = ".parquet"
RUN_AGAIN = "run the same study again: parts that are whole are kept, the others are computed again"
MANIFEST_FILE = FileKind(
    name="manifest of a study",
    fix=RUN_AGAIN,
    schema_version=MANIFEST_VERSION,
    is_sealed=True,
    has_every_key=True,
    max_bytes=2**28,
)
_DIGITS = 32  # of the SHA-256 in a name
_NAME = re.compile(
    r"(?P<stem>part-[0-9a-z]+-[0-9a-z]+)-(?P<run>[0-9a-f]{8})-(?P<digest>[0-9a-f]{32})(-failures)?\.parquet"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPart:
    """One finished file, as it was written."""

    file: str  # below the folder of the study
    sha256: str
    rows: int
    columns: str  # digest of the names and types of its columns

    @property
    def has_failures(self) -> bool:
        """Whether some of its points failed."""
        return self.file.endswith(f"{FAILURES}{SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyManifest:
    """The study as it was declared last; a stem without a part is not finished."""

    schema_version: int = MANIFEST_VERSION
    study: str
    run: str  # that wrote this
    tool_version: str
    points: int
    stems: list[str]
    parts: dict[str, StudyPart]

    def text(self) -> bytes:
        """The manifest as it is kept."""
        return b"".join(sealed_lines(asdict(self)))


def read_manifest(raw: bytes) -> StudyManifest:
    """The manifest in a file; one byte that differs is refused."""
    manifest = decode_json(raw, StudyManifest, MANIFEST_FILE)
    check_seal(raw, MANIFEST_FILE)
    for stem, part in manifest.parts.items():
        if stem not in manifest.stems or "/../" in f"/{part.file}" or part_stem(part.file) != stem:
            raise MANIFEST_FILE.malformed(f"parts.{stem}", "a part of this study", part.file)
    return manifest


def part_name(stem: str, run: str, sha256: str, *, failed: bool) -> str:
    """The name of a finished file."""
    return f"{stem}-{run}-{sha256[:_DIGITS]}{FAILURES if failed else ''}{SUFFIX}"


def part_stem(path: str) -> str | None:
    """The task and the inputs of a part; None: it is not named like one."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match["stem"]


def part_digest(path: str) -> str:
    """The beginning of the SHA-256 that a part must have, by its name."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    return "" if match is None else match["digest"]


def columns_digest(schema: Iterable[Any]) -> str:
    """The digest of the names and types of an Arrow schema, in their order."""
    return hashlib.sha256("\n".join(f"{field.name}:{field.type}" for field in schema).encode()).hexdigest()[:16]
