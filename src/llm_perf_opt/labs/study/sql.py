"""Questions to the files of studies in SQL: DuckDB reads them in place. The only file of studies that sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.study_columns import COLUMNS, REAL, TEXT, TRUTH, WHOLE
from llm_perf_opt.labs.study.parquet_store import INSTALL, StudyStore

VIEW = "points"
_MIDDLES = {  # name -> the two edges: as far, by factors, from one as from the other; of traffic those of 99 in 100
    "ttft_s": ("coalesce(prefill_low_s, ttft_p99_low_s)", "coalesce(prefill_high_s, ttft_p99_high_s)"),
    "tpot_s": ("coalesce(decode_low_s, tpot_p99_low_s)", "coalesce(decode_high_s, tpot_p99_high_s)"),
    "run_s": ("coalesce(run_low_s, e2e_p99_low_s)", "coalesce(run_high_s, e2e_p99_high_s)"),
    "tokens_per_s": ("tokens_per_s_low", "tokens_per_s_high"),
    "requests_per_s": ("requests_per_s_low", "requests_per_s_high"),
    "cost_per_million_tokens": ("cost_per_million_tokens_low", "cost_per_million_tokens_high"),
    "cost_per_million_requests": ("cost_per_million_requests_low", "cost_per_million_requests_high"),
}
_SQL_TYPES = {TEXT: "varchar", WHOLE: "bigint", REAL: "double", TRUTH: "boolean"}
MIDDLES = tuple(_MIDDLES)  # columns that the view has besides those of the files


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlResult:
    """The columns of an answer, and its rows as an Arrow table."""

    columns: tuple[str, ...]
    table: Any

    def rows(self, most: int | None = None) -> list[tuple[Any, ...]]:
        """As Python's own values; at most so many."""
        part = self.table if most is None else self.table.slice(0, most)
        return list(zip(*(part.column(place).to_pylist() for place in range(part.num_columns)), strict=True))


@contextmanager
def connection(store: StudyStore, studies: Sequence[str]) -> Iterator[Any]:
    """A connection with one view of all points, called `points`; files outside the store cannot be read through it."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise PerfOptError("DuckDB is not installed.", why="it answers questions in SQL", fix=INSTALL) from error
    files = [path for study in studies for path in store.listed_files(study)]
    if not files:
        raise UsageError(
            f"There are no points at {store.root}.",
            why="no study has been run there, or none has finished a task",
            fix="run one: llm-perf-opt study FILE --out FOLDER",
        )
    opened = duckdb.connect(config={"memory_limit": "2GB", "threads": str(min(8, os.cpu_count() or 1))})
    try:
        opened.execute("set enable_progress_bar = false")
        opened.execute("set preserve_insertion_order = false")  # a query that wants an order says so
        paths = _paths(store, files)
        if not store.is_local:
            opened.register_filesystem(store.filesystem)
        else:
            opened.execute("set allowed_directories = [" + _quoted(f"{store.path}/") + "]")
            opened.execute("set enable_external_access = false")
        opened.execute(f"create view {VIEW} as {_every_column(opened, paths)}")
        yield opened
    finally:
        opened.close()


def _every_column(opened: Any, paths: Sequence[str]) -> str:
    """The points, with the middles of their bands. A file of an earlier release may have fewer columns: unknown."""
    files = f"read_parquet([{', '.join(map(_quoted, paths))}], union_by_name = true)"
    there = {name for name, *_ in opened.execute(f"describe select * from {files}").fetchall()}
    unknown = [f"null::{_SQL_TYPES[one.type]} as {one.name}" for one in COLUMNS if one.name not in there]
    middles = [f"sqrt({low} * {high}) as {name}" for name, (low, high) in _MIDDLES.items()]
    whole = f"select {', '.join(['*', *unknown])} from {files}"
    return f"select *, {', '.join(middles)} from ({whole})"


def _paths(store: StudyStore, files: Sequence[str]) -> list[str]:
    """As DuckDB takes them: with the name of a file system that is not this machine's."""
    if store.is_local:
        return list(files)
    protocol = store.filesystem.protocol
    name = protocol if isinstance(protocol, str) else protocol[0]
    return [f"{name}://{path.lstrip('/')}" for path in files]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def answer(opened: Any, sql: str, parameters: Mapping[str, Any] | None = None) -> SqlResult:
    """The answer to one question; what DuckDB refuses is said in its own words."""
    import duckdb

    try:
        found = opened.sql(sql, params=dict(parameters) if parameters else None)
        table = None if found is None else found.to_arrow_table()
    except duckdb.Error as error:
        raise UsageError(
            "The question could not be answered.",
            why=" ".join(str(error).split())[:400],
            fix=f"the table is called {VIEW}; its columns: docs/studies.md",
        ) from error
    if table is None:
        raise UsageError("The query has no answer.", why="it is no select", fix=f"select something from {VIEW}")
    return SqlResult(columns=tuple(table.column_names), table=table)
