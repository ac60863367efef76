from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator

import pytest

from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import BarChart, Column, Kind, Level, Listing, Note, Report, Series, Table
from tests.formats.made_reports import full_report, hostile_report, limits_report

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


def read(name: str, text: str) -> str:
    """What a person sees: of a web page its words, of anything else the whole."""
    return (
        html.unescape(re.sub(r"<[^>]*>", " ", text.partition("<main")[2].partition("</main>")[0]))
        if name == "html"
        else text
    )


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
    assert re.search(r"(?<![\d.])0(?![\d.])", read(name, text)) is None
    assert text.endswith("\n")


LISTING = Listing("Table of another tool", "| model | #flops |\n| ```a\u202eb\x1b[2J | 1_000 |\n<b>|x|</b>\n")


@pytest.mark.parametrize("name", REPORTERS.names())
def test_every_format_shows_the_lines_of_another_tool_or_says_where_they_are(name: str) -> None:
    text = REPORTERS.get(name)().render(Report(title="r", listings=(LISTING,)))
    assert "Table of another tool" in text
    if name == "json":
        assert json.loads(text)["listings"] == [{"title": LISTING.title, "text": LISTING.text}]
        return
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text) == []
    if name == "csv":
        assert "3 lines, which the other formats have" in text
    else:
        shown = html.unescape(text).splitlines()
        assert any(line.endswith("| model | #flops |") for line in shown)
        assert any("| ```a\\u202eb\\x1b[2J | 1_000 |" in line for line in shown)
    assert "<b>" not in text or name in ("text", "markdown")  # between fences of four backticks nothing acts
    assert name != "markdown" or "\n````text\n| model | #flops |\n" in text


def titles(report: Report) -> Iterator[str]:
    yield report.title
    yield from (item.title for item in (*report.tables, *report.charts))
    for chapter in report.chapters:
        yield from titles(chapter)


@pytest.mark.parametrize("name", REPORTERS.names())
def test_every_format_tells_every_chapter_table_chart_and_picture(name: str) -> None:
    report = full_report()
    text = html.unescape(REPORTERS.get(name)().render(report))
    assert [title for title in titles(report) if title not in text] == []
    for word in (
        "torch-counter",
        "Agreement of sources",
        "95th percentile",
        "deepseek-ocr, prefill",
        "H100 SXM, bfloat16",
    ):
        assert word in text


@pytest.mark.parametrize("name", REPORTERS.names())
@pytest.mark.parametrize("make", [full_report, hostile_report, limits_report])
def test_the_same_report_gives_the_same_bytes(name: str, make: Callable[[], Report]) -> None:
    texts = [REPORTERS.get(name)().render(make()).encode("utf-8") for _ in range(2)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["text", "markdown", "csv", "html"])
def test_no_name_acts_in_a_terminal(name: str) -> None:
    text = REPORTERS.get(name)().render(hostile_report())
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]", text) == []


def test_text_is_ascii_with_chapters_underlined_and_bars_to_scale() -> None:
    lines = REPORTERS.get("text")().render(full_report()).splitlines()
    assert "".join(lines).isascii()
    assert lines[lines.index("What it costs") + 1] == "=" * len("What it costs")
    bars = {line.split()[0]: line.count("#") for line in lines[lines.index("FLOPs by stage") :][3:8]}
    assert bars["sam"] == 40
    assert bars["clip"] == round(40 * 1_097_324_003_328 / 2_371_542_061_056)
    assert bars["decode"] == 1  # not zero, so not without a bar


def test_a_stack_is_told_in_text_without_the_parts_that_are_nothing() -> None:
    series = (Series("linear", (3, 0, 0)), Series("conv2d", (0, 2, 0)), Series("attention", (None, 1, 0)))
    chart = BarChart(title="c", categories=("x", "y", "z"), series=series, kind=Kind.COUNT, is_stacked=True)
    lines = REPORTERS.get("text")().render(Report(title="r", charts=(chart,))).splitlines()
    told = [tuple(line.split()[:3]) for line in lines if line[:1] in ("x", "y", "z")]
    known = [("x", "linear", "3"), ("x", "attention", "?"), ("y", "conv2d", "2"), ("y", "attention", "1")]
    assert told == [*known, ("z", "linear", "0"), ("z", "conv2d", "0"), ("z", "attention", "0")]


def test_json_holds_charts_and_chapters_as_data() -> None:
    report = full_report()
    document = json.loads(REPORTERS.get("json")().render(report))
    costs = document["chapters"][1]
    assert [chapter["title"] for chapter in costs["chapters"]] == ["Do the sources agree?", "Memory"]
    assert costs["charts"][0]["series"][0]["values"][0] == 2_371_542_061_056
    assert costs["charts"][0]["unit"] == "flops"
    memory = costs["chapters"][1]["charts"][0]
    assert len(memory["lines"][0]["points"]) == 4000
    assert memory["y"] == {"name": "live bytes", "unit": "bytes", "is_log": False}
    assert document["chapters"][0]["graph"]["title"] == "deepseek-ocr, prefill"
    assert costs["tables"][0]["rows"][2]["mfu_ratio"] is None
    assert {"rate_flops_per_s", "bandwidth_bytes_per_s", "intensity_flops_per_byte"} <= costs["tables"][0]["rows"][
        0
    ].keys()


def test_json_keys_never_swallow_a_column() -> None:
    columns = (Column("FLOPs", Kind.FLOPS), Column("flops", Kind.FLOPS), Column("\u6a21\u578b"), Column("?!"))
    table = Table(title="t", columns=columns, rows=((1, 2, "a", "b"),))
    rows = json.loads(REPORTERS.get("json")().render(Report(title="r", tables=(table,))))["tables"][0]["rows"]
    assert list(rows[0].items()) == [("flops", 1), ("flops_2", 2), ("\u6a21\u578b", "a"), ("column", "b")]


def test_markdown_names_turn_into_no_markup() -> None:
    cell = "<b>*x*</b> __init__ a_b [l](u)"
    table = Table(title="t", columns=(Column("name"),), rows=((cell,),))
    text = REPORTERS.get("markdown")().render(Report(title="r", tables=(table,)))
    assert r"| \<b>\*x\*\</b> \_\_init\_\_ a_b [l]\(u) |" in text


def test_text_lines_up_and_prints_units() -> None:
    lines = render("text").splitlines()
    table = lines[3:9]
    assert table[0].split() == ["stage", "calls", "FLOPs", "MACs", "bytes", "moved", "activations", "time"]
    assert table[2] == "sam    1,234  2.00 TFLOP  1.00 TMAC     3.00 GiB     1.00 MiB   250 ms"
    assert table[3] == "a|b        6   500 GFLOP   250 GMAC     1.00 GiB            ?  50.0 ms"
    assert table[1] == table[4] == re.sub(r"[^ ]", "-", table[1])
    assert {len(line) for line in table} == {len(table[0])}


def test_long_notes_are_wrapped_and_no_word_is_cut_that_fits_a_line() -> None:
    words = [*["half-way"] * 60, "a-very-long-word" * 6]
    text = REPORTERS.get("text")().render(Report(title="t", notes=(Note(" ".join([*words, "x" * 300])),)))
    assert text.split()[2:63] == words
    assert "".join(text.split()[63:]) == "x" * 300
    assert max(map(len, text.splitlines())) <= 100


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
