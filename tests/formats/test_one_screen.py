"""A report on one screen of a terminal: what stands, what is cut, what is said of the rest; tables on a page."""

from __future__ import annotations

import re

import pytest

from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table
from llm_perf_opt.formats.text_format import TextReport
from llm_perf_opt.formats.text_table import PAGE_WIDTH, table_parts, table_text
from tests.formats.made_reports import full_report, hostile_report, limits_report

WORDS = tuple(f"figure number {place} of many" for place in range(12))


def wide_table(rows: int, title: str = "Wide") -> Table:
    columns = (Column("stage"), *(Column(name, Kind.COUNT) for name in WORDS))
    cells = tuple((f"stage-{row}", *(10**6 * row + place for place in range(len(WORDS)))) for row in range(rows))
    return Table(title=title, columns=columns, rows=cells, footer=("total", *(1 for _ in WORDS)))


@pytest.mark.parametrize("make", [full_report, hostile_report, limits_report])
def test_a_screen_is_no_wider_than_a_page_and_no_higher_than_a_screen(make: object) -> None:
    lines = TextReport().one_screen(make()).splitlines()  # type: ignore[operator]
    assert max(map(len, lines)) <= PAGE_WIDTH
    assert len(lines) <= 50


def test_a_wide_table_becomes_several_with_the_same_key_and_every_number_whole() -> None:
    text = table_text(wide_table(4))
    assert max(map(len, text.splitlines())) <= PAGE_WIDTH
    assert len(table_parts(wide_table(4))) > 1
    numbers = {f"{10**6 * row + place:,}" for row in range(4) for place in range(len(WORDS))}
    assert numbers <= set(text.split())
    assert text.count("stage-3") == len(table_parts(wide_table(4)))
    assert text.count("\nWide") == 0


def test_headings_break_before_a_table_does() -> None:
    columns = (Column("stage"), *(Column(f"a long heading {place}", Kind.COUNT) for place in range(6)))
    (only,) = table_parts(Table(title="t", columns=columns, rows=(("x", 1, 2, 3, 4, 5, 6),)))
    heading = only.splitlines()[1:-2]
    assert len(heading) > 1
    assert max(map(len, only.splitlines())) <= PAGE_WIDTH


def test_a_path_goes_on_in_its_own_column_after_a_dot() -> None:
    path = "model." + ".".join(f"layers_{place}" for place in range(30))
    columns = (Column("module"), Column("calls", Kind.COUNT))
    lines = table_text(Table(title="", columns=columns, rows=((path, 7),))).splitlines()[2:]
    assert max(map(len, lines)) <= PAGE_WIDTH
    assert "".join(line.split()[0] for line in lines) == path
    assert all(re.match(r"\S+[._]$", line.split()[0]) for line in lines[:-1])


def test_rows_without_a_key_of_their_own_are_numbered() -> None:
    columns = (Column("phase"), *(Column(name, Kind.COUNT) for name in WORDS))
    table = Table(title="", columns=columns, rows=tuple(("prefill", *range(10**7, 10**7 + 12)) for _ in range(3)))
    parts = table_parts(table)
    assert len(parts) > 1
    assert [part.splitlines()[-1].split()[0] for part in parts] == ["3"] * len(parts)


def test_what_is_left_out_is_counted_and_warnings_never_are() -> None:
    rows = Table(title="Long", columns=(Column("name"),), rows=tuple((f"row-{place}",) for place in range(200)))
    other = Table(title="Other", columns=(Column("name"),), rows=tuple((f"x-{place}",) for place in range(60)))
    notes = (Note("a hole in the figures", Level.WARNING), *(Note(f"note {place}") for place in range(9)))
    text = TextReport().one_screen(Report(title="r", answer=("yes",), tables=(rows, other), notes=notes))
    assert text.startswith("yes\n\nr\n")
    shown = len(re.findall(r"^row-\d+$", text, re.M))
    assert f"... and {200 - shown} more rows" in text
    assert f"Left out: 1 table (Other), {200 - shown} rows, 9 notes. --verbose shows all." in " ".join(text.split())
    assert "warning: a hole in the figures" in text


def test_many_warnings_are_counted() -> None:
    notes = tuple(Note(f"hole {place}", Level.WARNING) for place in range(40))
    text = TextReport().one_screen(Report(title="r", notes=notes))
    shown = len(re.findall(r"^warning: hole \d+$", text, re.M))
    assert 0 < shown < 40
    assert f"warning: {40 - shown} more; --verbose shows all." in text


def test_an_answer_has_at_most_three_lines() -> None:
    with pytest.raises(ValueError, match="4 lines"):
        Report(title="r", answer=("a", "b", "c", "d"))
