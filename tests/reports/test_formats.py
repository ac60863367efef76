from __future__ import annotations

import json
import re

import pytest

from llm_perf_opt.document import Column, Kind, Level, Note, Report, Table
from llm_perf_opt.plugins import REPORTERS

COLUMNS = (
    Column("stage"),
    Column("calls", Kind.COUNT),
    Column("FLOPs", Kind.FLOPS),
    Column("MACs", Kind.MACS),
    Column("bytes moved", Kind.BYTES),
    Column("activations", Kind.BYTES),
    Column("time", Kind.SECONDS),
)
REPORT = Report(
    title="tiny, prefill",
    tables=(
        Table(
            title="Per stage",
            columns=COLUMNS,
            rows=(
                ("sam", 1_234, 2_000_000_000_000, 1_000_000_000_000, 3 * 2**30, 2**20, 0.25),
                ("a|b", 6, 500_000_000_000, 250_000_000_000, 2**30, None, 0.05),
            ),
            footer=("total", 1_240, 2_500_000_000_000, 1_250_000_000_000, 4 * 2**30, None, 0.3),
        ),
    ),
    notes=(Note("One multiply-add is two FLOPs."), Note("2 ops have no price.", Level.WARNING)),
)


def render(name: str) -> str:
    return REPORTERS.get(name)().render(REPORT)


@pytest.mark.parametrize("name", REPORTERS.names())
def test_every_format_shows_every_table_and_note_and_no_zero_for_the_unknown(name: str) -> None:
    text = render(name)
    for word in (
        "tiny, prefill",
        "Per stage",
        "sam",
        "total",
        "One multiply-add is two FLOPs.",
        "2 ops have no price.",
    ):
        assert word in text
    assert re.search(r"(?<![\d.])0(?![\d.])", text) is None
    assert text.endswith("\n")


def test_text_lines_up_and_prints_units() -> None:
    lines = render("text").splitlines()
    table = lines[3:9]
    assert table[0].split() == ["stage", "calls", "FLOPs", "MACs", "bytes", "moved", "activations", "time"]
    assert table[2] == "sam    1,234  2.00 TFLOP  1.00 TMAC     3.00 GiB     1.00 MiB   250 ms"
    assert table[3] == "a|b        6   500 GFLOP   250 GMAC     1.00 GiB            ?  50.0 ms"
    assert table[1] == table[4] == re.sub(r"[^ ]", "-", table[1])
    assert {len(line) for line in table} == {len(table[0])}


def test_long_notes_are_wrapped_and_no_word_is_cut() -> None:
    words = [*["half-way"] * 60, "a-very-long-word" * 8]
    text = REPORTERS.get("text")().render(Report(title="t", notes=(Note(" ".join(words)),)))
    assert text.split()[2:] == words
    assert max(map(len, text.splitlines()[:-1])) <= 110


def test_json_holds_raw_numbers_with_the_unit_in_the_key_and_the_totals_add_up() -> None:
    table = json.loads(render("json"))["tables"][0]
    assert table["rows"][0] == {
        "stage": "sam",
        "calls": 1_234,
        "flops": 2_000_000_000_000,
        "macs": 1_000_000_000_000,
        "bytes_moved": 3 * 2**30,
        "activations_bytes": 2**20,
        "time_seconds": 0.25,
    }
    assert table["rows"][1]["activations_bytes"] is None
    for key in ("calls", "flops", "macs", "bytes_moved"):
        assert sum(row[key] for row in table["rows"]) == table["total"][key]


def test_markdown_is_a_table_even_where_a_cell_holds_its_separator() -> None:
    lines = render("markdown").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert [cell.strip() for cell in rows[1]] == [":--"] + ["--:"] * 6
    assert rows[3][0].strip() == r"a\|b"
    assert rows[4][0].strip() == "**total**"
    assert "- **Warning:** 2 ops have no price." in lines
