"""Questions to the files of studies in SQL: DuckDB reads them in place. The only file of studies that sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import scratch_folder
from llm_perf_opt.sweeps.studies.parquet_store import INSTALL, RUN_AGAIN, StudyPart, StudyStore
from llm_perf_opt.sweeps.studies.study_columns import COLUMNS, REAL, TEXT, TRUTH, WHOLE

VIEW = "points"
MEMORY_BYTES = 2 * 10**9  # of one question of ours; what does not fit goes to the temporary folder
SPILLED_BYTES = 8 * 10**9
_WRITING = re.compile(r"(copy|insert|update|delete|merge|truncate|attach|export|install|load)\b", re.IGNORECASE)
_MIDDLES = {  # name -> low and high, with the geometric mean in the middle; for traffic at p99
    "ttft_s": ("coalesce(prefill_low_s, ttft_p99_low_s)", "coalesce(prefill_high_s, ttft_p99_high_s)"),
    "tpot_s": ("coalesce(decode_low_s, tpot_p99_low_s)", "coalesce(decode_high_s, tpot_p99_high_s)"),
    "run_s": ("coalesce(run_low_s, e2e_p99_low_s)", "coalesce(run_high_s, e2e_p99_high_s)"),
    "tokens_per_s": ("tokens_per_s_low", "tokens_per_s_high"),
    "requests_per_s": ("requests_per_s_low", "requests_per_s_high"),
    "cost_per_million_tokens": ("cost_per_million_tokens_low", "cost_per_million_tokens_high"),
    "cost_per_million_requests": ("cost_per_million_requests_low", "cost_per_million_requests_high"),
}
_SQL_TYPES = {TEXT: "varchar", WHOLE: "bigint", REAL: "double", TRUTH: "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResult:
    """The columns of an answer, and its rows as an Arrow table."""

    columns: tuple[str, ...]
    table: Any

    def rows(self, most: int | None = None) -> list[tuple[Any, ...]]:
        """The rows as Python's own values; at most this many."""
        part = self.table if most is None else self.table.slice(0, most)
        return list(zip(*(part.column(place).to_pylist() for place in range(part.num_columns)), strict=True))


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise PerfOptError("DuckDB is not installed.", why="it answers questions in SQL", fix=INSTALL) from error
    return duckdb


@contextmanager
def connection(store: StudyStore, studies: Sequence[str]) -> Iterator[Any]:
    """A connection with one view of all points, called `points`, from parts that were checked byte by byte."""
    with scratch_folder() as scratch, opened_files(checked_files(store, studies, scratch), scratch) as opened:
        yield opened


def checked_files(store: StudyStore, studies: Sequence[str], scratch: Path) -> list[str]:
    """The parts of studies as files of this machine, in `scratch`: links into a folder, copies of what is elsewhere.

    One part that is not what was written is refused: an answer without it could be another answer.
    """
    listed = [part for study in studies for part in store.finished(study).items()]
    if not listed:
        raise UsageError(
            f"There are no points at {store.root}.",
            why="no study has been run there, or none has finished a task",
            fix="run one: llm-perf-opt study FILE --out FOLDER",
        )
    is_local = store.is_local

    def check(number: int, path: str, written: StudyPart | None) -> str:
        file = scratch / f"{number}.parquet"
        part = store.checked(path, copy=None if is_local else file)
        if written is not None and part != written:
            raise PerfOptError(
                f"{path} is not the part that the study lists.",
                why="its digest, its rows or its columns differ",
                fix=RUN_AGAIN,
            )
        if is_local:
            file.symlink_to(Path(path).absolute())
        return str(file)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # digests are made outside of Python's lock
        return list(pool.map(lambda place: check(place, *listed[place]), range(len(listed))))


@contextmanager
def opened_files(files: Sequence[str], scratch: Path, memory_bytes: int = MEMORY_BYTES) -> Iterator[Any]:
    """A read-only database with one view of these files; it reaches no other file, and its settings are locked."""
    duckdb = _duckdb()
    database = scratch / "points.duckdb"
    duckdb.connect(str(database)).close()
    settings = {
        "memory_limit": f"{memory_bytes // 10**6}MB",
        "threads": str(min(8, os.cpu_count() or 1)),
        "temp_directory": str(scratch / "spilled"),
        "max_temp_directory_size": f"{SPILLED_BYTES // 10**6}MB",
    }
    opened = duckdb.connect(str(database), read_only=True, config=settings)
    try:
        opened.execute("set enable_progress_bar = false")
        opened.execute("set preserve_insertion_order = false")  # a query that wants an order says so
        opened.execute(f"set allowed_paths = [{', '.join(map(_quoted, files))}]")
        opened.execute("set enable_external_access = false")
        try:
            opened.execute(f"create temp view {VIEW} as {_every_column(opened, files)}")
        except duckdb.Error as error:  # a part that was written to deceive: its digest fits, its content does not
            raise UsageError(
                "The parts of the study are not tables that can be read.",
                why=" ".join(str(error).split())[:400],
                fix=RUN_AGAIN,
            ) from error
        opened.execute("set lock_configuration = true")
        yield opened
    finally:
        opened.close()


def _every_column(opened: Any, paths: Sequence[str]) -> str:
    """The points, with the middles of their bands. A file of an earlier release may have fewer columns: unknown."""
    files = f"read_parquet([{', '.join(map(_quoted, paths))}], union_by_name = true, hive_partitioning = false)"
    there = {name for name, *_ in opened.execute(f"describe select * from {files}").fetchall()}
    unknown = [f"null::{_SQL_TYPES[column.type]} as {column.name}" for column in COLUMNS if column.name not in there]
    middles = [f"sqrt({low} * {high}) as {name}" for name, (low, high) in _MIDDLES.items()]
    every_column = f"select {', '.join(['*', *unknown])} from {files}"
    return f"select *, {', '.join(middles)} from ({every_column})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def require_select(sql: str) -> None:
    """One statement that reads. Newer DuckDBs let a `with` write too, so that the words for it are refused as well."""
    duckdb = _duckdb()
    try:
        sql.encode()  # half of a surrogate pair is no text that a database takes
        kinds = [str(statement.type).rpartition(".")[2] for statement in duckdb.extract_statements(sql)]
        words = [(sql.encode()[place:].decode("utf-8", "replace"), str(kind)) for place, kind in duckdb.tokenize(sql)]
    except (duckdb.Error, UnicodeEncodeError) as error:
        raise _unanswered(error) from error
    writing = [text for text, kind in words if kind.endswith("keyword") and _WRITING.match(text)]
    if kinds != ["SELECT"] or writing:
        statement = writing[0].split()[0].lower() if writing else ", ".join(kinds).lower() or "nothing"
        raise UsageError(
            "The query is not answered: only one select is.",
            why=f"it holds {statement}, and results are never changed by a question",
            fix=f"select something from {VIEW}; a column of that name goes in double quotes",
        )


def _unanswered(error: Exception) -> UsageError:
    return UsageError(
        "The question could not be answered.",
        why=" ".join(str(error).split())[:400],
        fix=f"the table is called {VIEW}; its columns: docs/start/studies.md",
    )


def answer(opened: Any, sql: str, parameters: Mapping[str, float | str] | None = None) -> SqlResult:
    """The answer to one question of ours; what DuckDB refuses is said in its own words."""
    try:
        table = opened.sql(sql, params=dict(parameters) if parameters else None).to_arrow_table()
    except _duckdb().Error as error:
        raise _unanswered(error) from error
    return SqlResult(columns=tuple(table.column_names), table=table)


def batches(opened: Any, sql: str, rows: int) -> Iterator[Any]:
    """The rows of an answer as they are found, this many at a time, as record batches of Arrow; the schema first."""
    try:
        lazy = opened.sql(sql)  # a relation streams its rows; `execute` would hold all of them first
        reader = lazy.to_arrow_reader(rows) if hasattr(lazy, "to_arrow_reader") else lazy.fetch_arrow_reader(rows)
        yield reader.schema
        yield from reader
    except _duckdb().Error as error:
        raise _unanswered(error) from error
