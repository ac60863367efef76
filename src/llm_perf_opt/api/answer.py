"""What every answer of the API can do: show itself, become plain values or a data frame, and be saved.

An answer is a frozen record. Its figures are fields in base units, and None is unknown. The report is built when the
answer is shown, not when a figure is read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Report, Table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Answer(ABC):
    """The answer to one question. The report is built from the fields with a leading underscore."""

    @abstractmethod
    def report(self) -> Report:
        """Tables, charts and notes, ready for any format."""

    def to_dict(self) -> dict[str, Any]:
        """Every figure by name, nested as the records are. `json.dumps` takes it as it is."""
        return _record(self)

    @property
    def tables(self) -> tuple[str, ...]:
        """The titles that `to_pandas` takes, with the tables of chapters."""
        return tuple(_tables(self.report()))

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """One table as a data frame of raw numbers in base units: the first, or the one of that title."""
        tables = _tables(self.report())
        if table is None:
            table = next(iter(tables), "")
        if table not in tables:
            raise UsageError(f"There is no table {table!r}.", why=f"there are: {', '.join(tables)}", fix="choose one")
        return _data_frame(tables[table])

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the report. The suffix is the format: .html, .md, .json, .csv or .txt. `force` overwrites."""
        path = Path(path)
        reporter = REPORTERS.get(report_format_of(path))()
        free_file(path, force=force)
        write_result(path, reporter.render(self.report()))
        return path

    def __repr__(self) -> str:
        return REPORTERS.get("text")().render(self.report())

    def _repr_html_(self) -> str:
        """The page in a frame of its own, at most 60 kB; a note says what is left out and where it is."""
        from llm_perf_opt.formats.html_format import notebook_html

        return notebook_html(self.report())


def report_suffixes() -> dict[str, str]:
    """Suffix -> name of the report format."""
    return {REPORTERS.get(name).suffix: name for name in REPORTERS.names()}


def report_format_of(path: Path) -> str:
    """The report format for the suffix of a file."""
    known = report_suffixes()
    if path.suffix not in known:
        raise UsageError(
            f"No format ends in {path.suffix!r}.",
            why=f"the suffix is the format, one of: {', '.join(known)}",
            fix="name the file so, or give --format",
        )
    return known[path.suffix]


def _tables(report: Report) -> dict[str, Table]:
    """Tables by title; the tables of a chapter carry its title too."""
    tables = {table.title: table for table in report.tables}
    for chapter in report.chapters:
        tables |= {f"{chapter.title}: {title}": table for title, table in _tables(chapter).items()}
    return tables


def _data_frame(table: Table) -> pandas.DataFrame:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise PerfOptError(
            "pandas is not installed.", why="a data frame is made by it", fix="pip install pandas"
        ) from error
    rows: list[tuple[Any, ...]] = list(table.rows)
    return pandas.DataFrame(rows, columns=[column.name for column in table.columns])


_SCALARS = frozenset({"int", "float", "str", "bool", "None"})


@cache
def _names(record: type) -> tuple[str, ...]:
    """The public fields of a record, then its properties that are declared as a single number, word or truth value."""
    declared = [field.name for field in fields(record) if not field.name.startswith("_")]
    return (*declared, *(name for name in _figure_properties(record) if name not in declared))


def _figure_properties(record: type) -> Iterator[str]:
    for base in reversed(record.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, property):
                getter: Any = member.fget
            elif isinstance(member, cached_property):
                getter = member.func
            else:
                continue
            returns = str(getter.__annotations__.get("return", ""))
            if not name.startswith("_") and set(returns.split(" | ")) <= _SCALARS:
                yield name


def _record(record: Any) -> dict[str, Any]:
    kind: type = type(record)
    values = ((name, getattr(record, name)) for name in _names(kind))
    return {name: _plain(value) for name, value in values if not isinstance(value, array) and not callable(value)}


def _plain(value: Any) -> Any:
    """A JSON-safe value; records leave out functions and a trace's columns (`array`). What is not finite is None."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str | PathLike):
        return fspath(value)
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, Mapping):
        return {str(_plain(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, Collection):
        return [_plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
    if isinstance(value, Answer):
        return value.to_dict()
    if is_dataclass(value):
        return _record(value)
    raise TypeError(f"no plain value for {type(value).__name__}")
