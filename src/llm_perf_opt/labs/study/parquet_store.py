"""The store of a study: Parquet files through pyarrow on any path that fsspec knows; the only file that sees either.

`<results>/study=<name>/model=<name>/part-<task>-<inputs>.parquet`. A file is named by the hash of its inputs: a file
that is there is finished, a task that runs twice writes the same file, and changed inputs have another name.
`_study.json` lists the files of the study as it is declared now; others are of an earlier one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import cannot_write, make_folder, move_whole
from llm_perf_opt.core.scratch import PREFIX, remove_left_behind, temporary_path
from llm_perf_opt.core.study_columns import COLUMNS, FAILED, SCHEMA_VERSION

INSTALL = "pip install 'llm-perf-opt[study]'"
FAILURES = "-failures"  # in the name of a file some of whose points failed
SUFFIX = ".parquet"
MANIFEST = "_study.json"
ROWS_PER_GROUP = 1 << 16


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
        raise PerfOptError("fsspec is not installed.", why="results may lie on any storage", fix=INSTALL) from error
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
    fields = [pyarrow.field(one.name, types[one.type], metadata={"unit": one.unit}) for one in COLUMNS]
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
    fitting = [_plain(one) for one in value]
    return pyarrow.array(fitting, type=kind)


def _plain(value: Any) -> Any:
    """None for a whole number that 64 bits do not hold; the row says so."""
    return None if isinstance(value, int) and abs(value) >= 2**63 else value


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows one by one."""
    pyarrow = _pyarrow()
    names = [one.name for one in COLUMNS]
    plain = [{name: _plain(row.get(name)) for name in names} for row in rows]
    return pyarrow.Table.from_pylist(plain, schema=arrow_schema())


@dataclass(slots=True)
class _Staged:
    """A file that is being written, and the name that it gets."""

    stream: Any
    name: str = ""


@dataclass(frozen=True, slots=True)
class StudyStore:
    """The results of a study at one place."""

    root: str  # any path or address that fsspec knows

    @property
    def filesystem(self) -> Any:
        """Of that place."""
        return _fsspec().core.url_to_fs(self.root)[0]

    @property
    def path(self) -> str:
        """As the file system names it."""
        return str(_fsspec().core.url_to_fs(self.root)[1]).rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        protocol = self.filesystem.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def folder(self, study: str, model: str | None = None) -> str:
        """Of a study, or of a model in it."""
        base = f"{self.path}/study={study}"
        return base if model is None else f"{base}/model={model}"

    def studies(self) -> tuple[str, ...]:
        """The names of those that lie here."""
        found = self.filesystem.glob(f"{self.path}/study=*")
        return tuple(sorted(str(one).rstrip("/").rpartition("study=")[2] for one in found))

    def files(self, study: str) -> dict[str, str]:
        """Stem of each finished file -> its path; the mark of failures is no part of the stem."""
        found = self.filesystem.glob(f"{self.folder(study)}/model=*/part-*{SUFFIX}")
        return {stem_of(str(one)): str(one) for one in sorted(found)}

    def write(self, study: str, model: str, stem: str, tables: Iterable[Any]) -> int:
        """Write tables as one file, whole or not at all; how many rows failed."""
        pyarrow, files = _pyarrow(), self.filesystem
        folder, failed = self.folder(study, model), 0
        with self._staged(folder) as staged:
            with _writer(pyarrow, staged.stream) as writer:
                for table in tables:
                    failed += pyarrow.compute.sum(pyarrow.compute.equal(table.column("status"), FAILED)).as_py() or 0
                    writer.write_table(table, row_group_size=ROWS_PER_GROUP)
            staged.name, other = (f"{stem}{mark}{SUFFIX}" for mark in ((FAILURES, "") if failed else ("", FAILURES)))
        if files.exists(f"{folder}/{other}"):
            files.rm(f"{folder}/{other}")
        return failed

    @contextmanager
    def _staged(self, folder: str) -> Iterator[_Staged]:
        """A file under a temporary name, which gets its own when all of it is written."""
        files = self.filesystem
        if self.is_local:
            place = Path(folder)
            make_folder(place)
            try:
                with temporary_path(place) as partial:
                    with partial.open("xb") as stream:
                        staged = _Staged(stream)
                        yield staged
                    move_whole(partial, place / staged.name)
            except OSError as error:
                raise cannot_write(place, error) from error
            return
        files.makedirs(folder, exist_ok=True)
        name = f"{folder}/{PREFIX}{os.getpid()}-{uuid4().hex}"
        with files.open(name, "wb") as stream:
            staged = _Staged(stream)
            yield staged
        files.mv(name, f"{folder}/{staged.name}")

    def read(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of some files, one by one: those of an earlier run that may be kept."""
        pyarrow = _pyarrow()
        rows: list[dict[str, Any]] = []
        for path in paths:
            with self.filesystem.open(path, "rb") as stream:
                rows += pyarrow.parquet.ParquetFile(stream).read().to_pylist()
        return rows

    def write_manifest(self, study: str, content: Mapping[str, Any]) -> None:
        """What the study is made of now."""
        with self._staged(self.folder(study)) as staged:
            staged.stream.write(json.dumps(content, indent=1, sort_keys=True).encode())
            staged.name = MANIFEST

    def listed_files(self, study: str) -> list[str]:
        """The finished files of the study as it was declared last."""
        manifest = f"{self.folder(study)}/{MANIFEST}"
        found = self.files(study)
        if not self.filesystem.exists(manifest):
            return list(found.values())
        with self.filesystem.open(manifest, "rb") as stream:
            listed = json.loads(stream.read(1 << 28))["files"]
        return [found[stem] for stem in listed if stem in found]

    def remove_others(self, study: str, stems: Iterable[str]) -> int:
        """Remove files of an earlier declaration, and what dead processes left; how many of the first."""
        wanted, files = set(stems), self.filesystem
        others = [path for stem, path in self.files(study).items() if stem not in wanted]
        for path in others:
            files.rm(path)
        if self.is_local:
            for folder in files.glob(f"{self.folder(study)}/model=*"):
                remove_left_behind(Path(folder))
        return len(others)


def stem_of(path: str) -> str:
    """The stem of a finished file, without the mark of failures."""
    return path.rpartition("/")[2].removesuffix(SUFFIX).removesuffix(FAILURES)


def has_failures(path: str) -> bool:
    """Whether some of the points of a file failed."""
    return path.endswith(f"{FAILURES}{SUFFIX}")


def _writer(pyarrow: Any, stream: Any) -> Any:
    """Whole numbers as differences, reals byte by byte of the same weight, texts as dictionaries: all of it small."""
    schema = arrow_schema()
    texts = [field.name for field in schema if field.type == pyarrow.string()]
    encodings = {
        field.name: "DELTA_BINARY_PACKED" if field.type == pyarrow.int64() else "BYTE_STREAM_SPLIT"
        for field in schema
        if field.type in (pyarrow.int64(), pyarrow.float64())
    }
    return pyarrow.parquet.ParquetWriter(
        stream, schema, compression="zstd", use_dictionary=texts, column_encoding=encodings
    )
