"""The report page as a file: what is in it, what is not. tests/browser opens it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llm_perf_opt import formats
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table
from tests.formats.drawings.made_views import HOSTILE_NAMES
from tests.formats.made_reports import flops_by_stage, full_report, hostile_report, limits_report

PAGE_FOLDER = Path(formats.__file__).parent / "report_page"
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}
MADE = {"full": full_report(), "hostile": hostile_report(), "limits": limits_report(), "empty": Report(title="empty")}


class Outline(HTMLParser):
    """Tags in their nesting; `wrong` holds what was closed in the wrong place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.headings: list[int] = []
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def render(report: Report) -> str:
    return REPORTERS.get("html")().render(report)


@pytest.mark.parametrize("report", MADE.values(), ids=MADE)
def test_the_page_nests_its_addresses_are_unique_and_its_links_lead_somewhere(report: Report) -> None:
    outline = Outline(render(report))
    assert (outline.wrong, outline.open) == ([], [])
    assert len(outline.ids) == len(set(outline.ids))
    assert [link for link in outline.links if link[0] != "#" or link[1:] not in outline.ids] == []
    assert outline.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))


@pytest.mark.parametrize("report", MADE.values(), ids=MADE)
def test_no_name_becomes_markup(report: Report) -> None:
    page = render(report)
    outline = Outline(page)
    page.encode("utf-8")  # no lone surrogate either
    assert outline.tags.count("script") == 1 + page.count('<script id="witnesses" type="application/json">')
    assert not {name for name in outline.attributes if name.startswith("on")} | outline.attributes & {"style", "src"}
    assert "alert(1)</script" not in page


def test_hostile_names_are_shown_whole() -> None:
    page = render(hostile_report())
    text = html.unescape(page)
    for name in HOSTILE_NAMES:
        if name.isprintable():
            assert name in text


@pytest.mark.parametrize("report", MADE.values(), ids=MADE)
def test_the_policy_names_exactly_the_script_and_the_style_of_the_page(report: Report) -> None:
    page = render(report)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    texts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL) + re.findall(
        r"<style>(.*?)</style>", page, re.DOTALL
    )
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    assert re.findall(r"'sha256-([^']+)'", policy[1]) == hashes
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = render(full_report())
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", page))
    assert {address for address in addresses if "www.w3.org" not in address} == set()  # the name of an XML space
    assert re.findall(r"<(?:link|img|iframe|script [^>]*src)|@import|url\(", page) == []


def test_a_full_report_is_small() -> None:
    assert len(render(full_report()).encode("utf-8")) < 500_000


def test_a_number_has_every_digit_in_its_tooltip() -> None:
    columns = (Column("stage"), Column("FLOPs", Kind.FLOPS), Column("calls", Kind.COUNT), Column("MFU", Kind.RATIO))
    rows = (("sam", 2_371_542_061_056, 12, 0.41237), ("clip", None, None, None))
    page = render(Report(title="r", tables=(Table(title="t", columns=columns, rows=rows),)))
    assert '<td class="number" title="2,371,542,061,056 FLOP">2.37 TFLOP</td>' in page
    assert '<td class="number">12</td>' in page  # nothing was rounded
    assert '<td class="number" title="0.41237 of 1">41.2 %</td>' in page
    assert page.count('<td class="number unknown" title="not known">?</td>') == 3


def test_a_long_path_breaks_after_its_dots_and_stays_escaped() -> None:
    row = ("model.layers.0.self_attn.<b>",)
    page = render(Report(title="r", tables=(Table(title="t", columns=(Column("path"),), rows=(row,)),)))
    assert "model.<wbr>layers.<wbr>0.<wbr>self_<wbr>attn.&lt;b&gt;" in page


def test_a_number_with_a_point_is_never_broken() -> None:
    row = ("3.34 G parameters, 574 M active per decoded token",)
    page = render(Report(title="r", tables=(Table(title="t", columns=(Column("told"),), rows=(row,)),)))
    assert row[0] in page


def test_a_table_of_chapters_leads_to_them() -> None:
    columns = (Column("question"), Column("answer"))
    chapters = (Report(title="Does it <fit>?"), Report(title="prefill"))
    index = Table(title="At a glance", columns=columns, rows=(("Does it <fit>?", "yes"), ("prefill", "no")))
    stages = Table(title="Stages", columns=columns, rows=(("sam", "1"), ("prefill", "2")))
    page = render(Report(title="r", tables=(index, stages), chapters=chapters))
    assert '<th scope="row"><a href="#s-does-it-fit">Does it &lt;fit&gt;?</a></th>' in page
    assert '<h2 id="s-does-it-fit">Does it &lt;fit&gt;?</h2>' in page
    assert page.count('<th scope="row">prefill</th>') == 1  # a stage of the same name is no chapter


def test_the_first_table_stands_before_the_charts_and_the_others_behind() -> None:
    tables = tuple(Table(title=title, columns=(Column("a"),), rows=()) for title in ("answer", "details"))
    page = render(Report(title="r", tables=tables, charts=(flops_by_stage(),)))
    for tag in ("h2", "a"):  # in the text as in the contents
        found = re.findall(rf"<{tag} (?:id|href)=\"#?s-(answer|details|flops-by-stage)\"", page)
        assert found[:3] == ["answer", "flops-by-stage", "details"]


def test_the_answer_stands_before_everything_else_and_is_no_markup() -> None:
    table = Table(title="numbers", columns=(Column("a"),), rows=(("1",),))
    page = render(Report(title="asked", answer=("It fits <b>well</b>.", "3 ms a token."), tables=(table,)))
    assert "<b>well" not in page
    first, second, third = (page.index(text) for text in ("It fits &lt;b&gt;", "3 ms a token.", "<table"))
    assert first < second < third


def test_warnings_are_counted_and_can_be_jumped_to() -> None:
    inner = Report(title="inner", notes=(Note("a hole", Level.WARNING), Note("a word")))
    page = render(Report(title="r", notes=(Note("first", Level.WARNING),), chapters=(inner,)))
    assert '<a class="chip" href="#warning-1">2 warnings</a>' in page
    assert '<li class="warning" id="warning-2"><strong>Warning</strong> a hole</li>' in page
    assert "<li>a word</li>" in page


def test_a_report_without_chapters_lists_its_tables_and_charts() -> None:
    page = render(Report(title="r", tables=(Table(title="Per stage", columns=(Column("a"),), rows=()),)))
    assert '<a href="#s-per-stage">Per stage</a>' in page
    assert "<nav" not in render(Report(title="r", notes=(Note("nothing to list"),)))


def test_every_chart_has_its_numbers_beside_it() -> None:
    page = render(full_report())
    assert page.count("<summary>The numbers</summary>") == page.count('<figure class="card chart"') == 8
    assert page.count("The formats json and csv have every point.") == 2


def test_the_files_of_the_page_hold_one_idea_each_and_write_no_markup() -> None:
    texts = {file.name: file.read_text("utf-8") for file in PAGE_FOLDER.iterdir()}
    assert {name for name, text in texts.items() if len(text.splitlines()) > 400} == set()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|fetch\(", texts["report.js"])
    assert re.findall(r"\|\s*safe", texts["report.html.jinja"]) == ["|safe"] * 2  # the two hashes
