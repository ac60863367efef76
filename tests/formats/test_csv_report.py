"""CSV as readers of CSV see it: raw numbers, empty for the unknown, and nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import re

import pytest

from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import BarChart, Column, Kind, Level, Note, Report, Series, Table
from tests.formats.made_reports import full_report, hostile_report

FORMULAS = ("=1+1", "+SUM(A1)", "-2+3", "@cmd", "\t=1", "  =1", "\uff1d1", '=HYPERLINK("http://x";"y")')


def render(report: Report) -> str:
    return REPORTERS.get("csv")().render(report)


def cells(text: str, delimiter: str = ",") -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text), delimiter=delimiter) for cell in row]


def table_of(*names: str) -> Table:
    columns = (Column("name"), Column("time", Kind.SECONDS), Column("size", Kind.BYTES))
    return Table(title="times", columns=columns, rows=tuple((name, -0.5, None) for name in names))


def test_numbers_are_raw_with_the_unit_in_the_heading_and_the_unknown_is_empty() -> None:
    columns = (
        Column("stage"),
        Column("FLOPs", Kind.FLOPS),
        Column("MFU", Kind.RATIO),
        Column("rate", Kind.BYTES_PER_S),
    )
    table = Table(
        title="costs",
        columns=columns,
        rows=(("a,b", 10**15, 0.1 + 0.2, None), ('say "x"', 0, None, 5)),
        footer=("total", 10**15, None, 5),
    )
    assert render(Report(title="r", tables=(table,))).splitlines() == [
        "# r",
        "",
        "# costs",
        '"stage","flops","mfu_ratio","rate_bytes_per_s"',
        '"a,b",1000000000000000,0.30000000000000004,',
        '"say ""x""",0,,5',
        '"total",1000000000000000,,5',
    ]


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_is_never_a_formula_but_a_negative_number_stays_one(name: str) -> None:
    text = render(Report(title="r", tables=(table_of(name),)))
    row = text.splitlines()[-1]
    assert next(csv.reader([row]))[0].startswith(("'", "\\t"))
    assert row.endswith(",-0.5,")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", [*FORMULAS, "a,=1", "b; =1", 'c",=1', "d\n=1"])
def test_no_title_or_note_hides_a_formula_wherever_a_spreadsheet_cuts(name: str, delimiter: str) -> None:
    chart = BarChart(title=name, categories=(name,), series=(Series(name, (1,)),), kind=Kind.COUNT, caption=name)
    report = Report(
        title=name,
        tables=(table_of(name),),
        notes=(Note(name, Level.WARNING),),
        charts=(chart,),
        chapters=(Report(title=name),),
    )
    numbers = re.compile(r"-?[\d.]+")
    bad = [cell for cell in cells(render(report), delimiter) if re.match(r"\s*[=+\-@\uff1d]", cell)]
    assert [cell for cell in bad if not numbers.fullmatch(cell) and not cell.startswith("-0.5")] == []


def test_every_block_is_a_table_of_one_width() -> None:
    for report in (full_report(), hostile_report()):
        for block in render(report).split("\n\n"):
            lines = [line for line in block.splitlines() if not line.startswith("#")]
            assert len({len(row) for row in csv.reader(lines)}) <= 1


def test_a_chart_has_every_point() -> None:
    text = render(full_report())
    block = next(block for block in text.split("\n\n") if "Live activations" in block)
    assert block.splitlines()[0] == "# What it costs / Memory / Live activations over the run"
    assert block.splitlines()[1] == '"line","operation","live_bytes"'
    assert len(block.splitlines()) == 4002
