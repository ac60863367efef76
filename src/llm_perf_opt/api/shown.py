"""Results that show themselves: text when printed, HTML in a notebook, a data frame on request."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.api.drawing import drawing_format_of, report_format_of
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import free_file, write_result
from llm_perf_opt.core.protocols import DRAWINGS, REPORTERS
from llm_perf_opt.core.report import GraphView, Report, Table

if TYPE_CHECKING:
    import pandas

_FRAME_HEIGHT = 640


@dataclass(frozen=True, eq=False, repr=False)
class ShownReport:
    """A report. `tables` names what `to_pandas` can give."""

    report: Report

    def __repr__(self) -> str:
        return REPORTERS.get("text")().render(self.report)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that neither its style nor the notebook's touches the other."""
        page = html.escape(REPORTERS.get("html")().render(self.report), quote=True)
        style = f"width:100%;height:{_FRAME_HEIGHT}px;border:0"
        return f'<iframe srcdoc="{page}" style="{style}" title="{html.escape(self.report.title, quote=True)}"></iframe>'

    @property
    def tables(self) -> tuple[str, ...]:
        """The titles of all tables, chapters included."""
        return tuple(_tables(self.report))

    def to_pandas(self, table: str | None = None) -> pandas.DataFrame:
        """One table as a data frame of raw numbers in base units: the first, or the one of that title."""
        tables = _tables(self.report)
        if table is None:
            table = next(iter(tables), "")
        if table not in tables:
            raise UsageError(f"There is no table {table!r}.", why=f"there are: {', '.join(tables)}", fix="choose one")
        return _data_frame(tables[table])

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the report; the suffix is the format: .html, .md, .json, .csv or .txt. `force` overwrites."""
        path = Path(path)
        reporter = REPORTERS.get(report_format_of(path))()
        free_file(path, force=force)
        write_result(path, reporter.render(self.report))
        return path


@dataclass(frozen=True, eq=False, repr=False)
class ShownGraph:
    """The grouped picture of one phase."""

    view: GraphView

    def __repr__(self) -> str:
        return str(DRAWINGS.get("text")().render(self.view))

    def _repr_html_(self) -> str:
        return f'<div style="overflow:auto">{DRAWINGS.get("svg")().render(self.view)!s}</div>'

    def save(self, path: str | Path, metric: str = "flops", *, force: bool = False) -> Path:
        """Write the picture; the suffix is the format: .html, .svg, .png, .dot, .mmd and so on. `force` overwrites."""
        path = Path(path)
        drawing = DRAWINGS.get(drawing_format_of(path))(metric)
        free_file(path, force=force)
        write_result(path, drawing.render(self.view))
        return path


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
