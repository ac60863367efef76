"""The report in a real browser: on a desk and on a phone, light and dark, with and without its script, on paper."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.plugins import REPORTERS
from llm_perf_opt.core.report import Column, Kind, Report, Table
from tests.formats.made_reports import FLOPS, full_report, hostile_report, limits_report

DESK, PHONE = (1280, 800), (390, 844)
OVERLAPS = """(() => {
    const found = [];
    for (const svg of document.querySelectorAll('.drawn svg')) {
        if (!svg.getBoundingClientRect().width) continue;
        for (const name of ['tick', 'mark-name', 'label', 'key']) {
            const named = [...svg.querySelectorAll('text.' + name)];
            const texts = named.map((e) => [e.textContent, e.getBoundingClientRect()]);
            texts.forEach(([a, r], i) => texts.slice(i + 1).forEach(([b, s]) => {
                const apart = r.left >= s.right || s.left >= r.right || r.top >= s.bottom - 3 || s.top >= r.bottom - 3;
                if (!apart) found.push([svg.ariaLabel, a, b]);
            }));
        }
    }
    return found;
})()"""
OUTSIDE = """[...document.querySelectorAll('.drawn svg')].flatMap((svg) => {
    const room = svg.getBoundingClientRect();
    if (!room.width) return [];
    return [...svg.querySelectorAll('text')].filter((e) => {
        const r = e.getBoundingClientRect();
        return r.left < room.left - 1 || r.right > room.right + 1 || r.top < room.top - 2 || r.bottom > room.bottom + 2;
    }).map((e) => [svg.ariaLabel, e.textContent]);
})"""
SMALL_TEXT = """[...document.querySelectorAll('.drawn svg')].filter((svg) => {
    const width = svg.getBoundingClientRect().width;
    return width && width / svg.viewBox.baseVal.width * 12 < 9;
}).length"""


class ReportPage:
    """An open report."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        driver.get(address)
        assert self.ask("document.documentElement.dataset.ready") == "yes"

    def ask(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def colour(self, selector: str, name: str = "backgroundColor") -> str:
        return str(self.ask(f"getComputedStyle(document.querySelector('{selector}')).{name}"))


Open = Callable[..., ReportPage]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a report in a window of a size; afterwards nothing may have been written to the console."""

    def open_report(report: Report, size: tuple[int, int] = DESK, *, dark: bool = False) -> ReportPage:
        file = tmp_path / "report.html"
        file.write_text(REPORTERS.get("html")().render(report), encoding="utf-8")
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        _system(browser, dark=dark)
        return ReportPage(browser, file.as_uri())

    before = browser.execute_script("return [innerWidth, innerHeight]")
    yield open_report
    metrics = {"width": before[0], "height": before[1], "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    _system(browser, dark=False)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def _system(browser: Any, *, dark: bool) -> None:
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})


@pytest.mark.parametrize("size", [PHONE, (768, 1024), DESK], ids=["phone", "tablet", "desk"])
@pytest.mark.parametrize("make", [full_report, limits_report, hostile_report])
def test_nothing_overflows_or_overlaps(opened: Open, make: Callable[[], Report], size: tuple[int, int]) -> None:
    page = opened(make(), size)
    assert page.ask("document.documentElement.scrollWidth") == size[0]
    assert page.ask(OVERLAPS) == []
    assert page.ask(OUTSIDE) == []
    assert page.ask(SMALL_TEXT) == 0


def test_links_of_the_contents_lead_to_their_chapters(opened: Open) -> None:
    page = opened(full_report())
    assert page.ask("[...document.querySelectorAll('nav.side a')].length") == 5
    for link in range(5):
        top, _, _, head = page.ask(f"""(() => {{
            const link = document.querySelectorAll('nav.side a')[{link}];
            link.click();
            const heading = document.getElementById(link.hash.slice(1));
            const head = document.querySelector('header');
            return [heading, head].map((e) => e.getBoundingClientRect()).flatMap((r) => [r.top, r.bottom]);
        }})()""")
        assert head <= top < 800
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.ask("document.querySelector('nav.side [aria-current]').textContent") == "How fast could it be?"


def test_on_a_phone_the_contents_open_and_close(opened: Open) -> None:
    page = opened(full_report(), PHONE)
    assert page.ask("document.querySelector('nav.side').checkVisibility()") is False
    assert page.ask("document.querySelector('details.contents a').checkVisibility()") is False
    page.ask("document.querySelector('details.contents summary').click()")
    assert page.ask("document.querySelector('details.contents a').checkVisibility()") is True
    page.ask("document.querySelector('details.contents a').click()")
    assert page.ask("document.querySelector('details.contents').open") is False


def test_dark_follows_the_system_until_the_reader_says_otherwise(opened: Open) -> None:
    light = opened(full_report())
    day = {part: light.colour(part) for part in ("body", ".card", "tbody td")}
    day["ink"], day["box"] = light.colour(".chart text.label", "fill"), light.colour(".drawing .leaf", "fill")
    dark = opened(full_report(), dark=True)

    def now() -> dict[str, str]:
        parts = {part: dark.colour(part) for part in ("body", ".card", "tbody td")}
        return {**parts, "ink": dark.colour(".chart text.label", "fill"), "box": dark.colour(".drawing .leaf", "fill")}

    night = now()
    assert [part for part in day if day[part] == night[part]] == []
    dark.ask("document.getElementById('theme').click()")
    assert now() == day
    dark.ask("document.getElementById('theme').click()")
    assert now() == night


def test_a_table_sorts_by_exact_values_with_the_unknown_last(opened: Open) -> None:
    page = opened(full_report())
    table = "[...document.querySelectorAll('.table table')].find((table) => table.tHead.textContent.includes('MFU'))"
    rows = f"[...{table}.tBodies[0].rows].map((row) => row.cells[0].textContent)"
    sort = "[...{table}.tHead.rows[0].cells].find((cell) => cell.textContent === '{name}').firstChild.click()"
    stages = [stage for _, stage in sorted(zip(FLOPS, ("sam", "clip", "projector", "prefill", "decode"), strict=True))]
    page.ask(sort.format(table=table, name="FLOPs"))
    assert page.ask(rows) == stages[::-1]
    page.ask(sort.format(table=table, name="FLOPs"))
    assert page.ask(rows) == stages
    for _ in range(2):
        page.ask(sort.format(table=table, name="MFU"))
        assert page.ask(rows)[-1] == "projector"
    page.ask(sort.format(table=table, name="stage"))
    assert page.ask(rows) == sorted(stages)
    assert page.ask(f"{table}.tFoot.rows[0].cells[0].textContent") == "total"
    assert page.ask(f"{table}.querySelectorAll('[aria-sort]').length") == 1


def test_a_table_copies_as_csv_what_its_filter_leaves(opened: Open) -> None:
    rows = tuple((f"layer {number}", number * 10**6 + 1, None) for number in range(20))
    named = (*rows, ("=1+1", 7, None), ('a "b"; @c', 8, None))
    columns = (Column("module"), Column("FLOPs", Kind.FLOPS), Column("time", Kind.SECONDS))
    page = opened(Report(title="A report", tables=(Table(title="Modules", columns=columns, rows=named),)))
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})

    def copied(words: str) -> str:
        page.ask(f"""(() => {{
            const box = document.querySelector('.tools input');
            box.value = '{words}';
            box.dispatchEvent(new Event('input'));
            window.copied = null;
            navigator.clipboard.writeText = async (text) => {{ window.copied = text; }};
            document.querySelector('.tools button').click();
        }})()""")
        return str(page.ask("window.copied"))

    assert copied("Layer 19") == '"module","FLOPs","time"\n"layer 19",19000001,'
    assert copied("b").splitlines()[1:] == ['"a ""b""; \'@c",8,']
    everything = copied("").splitlines()
    assert len(everything) == 23
    assert '"\'=1+1",7,' in everything


def test_a_wide_picture_and_a_wide_table_scroll_by_themselves(opened: Open) -> None:
    page = opened(full_report(), PHONE)
    widths = page.ask("[...document.querySelectorAll('.drawing, .table')].map((e) => [e.scrollWidth, e.clientWidth])")
    assert any(inner > outer for inner, outer in widths)
    assert max(outer for _, outer in widths) <= 390


def test_a_screen_reader_meets_named_charts_tables_and_headings(opened: Open) -> None:
    page = opened(full_report())
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if "role" in node]
    roles = {role for role, _ in named}
    assert {"banner", "main", "navigation", "table", "rowheader", "columnheader", "figure", "heading"} <= roles
    images = [name for role, name in named if role == "image"]
    assert "Roofline" in images
    assert [pair for pair in named if pair[0] in ("button", "link", "image", "figure", "region") and not pair[1]] == []
    levels = page.ask("[...document.querySelectorAll('h1,h2,h3,h4')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


def test_it_reads_without_its_script(opened: Open) -> None:
    page = opened(full_report())
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.driver.refresh()
        text = page.driver.find_element("tag name", "main").text
    finally:
        page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "2.37 TFLOP" in text
    assert page.driver.find_element("id", "theme").is_displayed() is False


def test_it_prints_on_a_few_light_pages(opened: Open) -> None:
    page = opened(full_report(), dark=True)
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    pdf = base64.b64decode(printed["data"])
    assert pdf.startswith(b"%PDF")
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert page.colour("body") == "rgb(255, 255, 255)"
    assert page.colour(".chart text.label", "fill") == "rgb(27, 31, 39)"
    assert page.colour(".drawing .page", "fill") == "rgb(255, 255, 255)"
    assert page.ask("document.querySelector('nav.side').checkVisibility()") is False
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_chapter_shows_its_answer_and_folds_the_rest_away(opened: Open) -> None:
    page = opened(full_report())
    tall = page.ask("document.documentElement.scrollHeight")
    folds = page.ask("document.querySelectorAll('details.more').length")
    assert folds >= 1
    assert page.ask("[...document.querySelectorAll('.warning')].every((one) => one.checkVisibility())")
    page.ask("document.querySelectorAll('details.more').forEach((fold) => { fold.open = true; })")
    assert page.ask("document.documentElement.scrollHeight") > tall


def test_a_link_to_what_is_folded_away_opens_it(opened: Open) -> None:
    page = opened(full_report())
    inside = page.ask("document.querySelector('details.more [id^=s-]').id")
    assert page.ask(f"document.getElementById('{inside}').checkVisibility()") is False
    page.driver.get(page.ask("location.href") + f"#{inside}")
    page.driver.execute_async_script("setTimeout(arguments[0], 100)")
    assert page.ask(f"document.getElementById('{inside}').checkVisibility()") is True
    assert 0 <= page.ask(f"document.getElementById('{inside}').getBoundingClientRect().top") < 800


def test_a_table_that_goes_on_says_so_until_its_end_is_seen(opened: Open) -> None:
    page = opened(full_report(), PHONE)
    cut = """[...document.querySelectorAll('.scroll')].filter((frame) => {
        const table = frame.firstElementChild;
        return table.checkVisibility() && table.scrollWidth > table.clientWidth + 2;
    })"""
    assert page.ask(f"{cut}.length") > 0
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.ask(f"{cut}.every((frame) => getComputedStyle(frame, '::before').content.includes('more'))")
    page.ask(f"{cut}.forEach((frame) => {{ frame.firstElementChild.scrollLeft = 9999; }})")
    page.driver.execute_async_script("setTimeout(arguments[0], 100)")
    assert page.ask(f"{cut}.some((frame) => 'more' in frame.dataset)") is False


@pytest.mark.slow
def test_the_report_of_a_whole_model_is_eight_screens_with_costs_and_speed_before_pictures(opened: Open) -> None:
    trace = lpo.trace("deepseek-ocr", image="1240x1754")
    page = opened(trace.report(device=["l4", "h100-sxm", "a100-sxm-80g"], execution="fused").report())
    assert page.ask("document.documentElement.scrollHeight") <= 8 * DESK[1]
    assert page.ask("document.documentElement.scrollWidth") == DESK[0]
    heads = page.ask("[...document.querySelectorAll('main h2')].map((one) => one.textContent)")
    chapters = [head for head in heads if head.endswith("?")]
    assert chapters[:2] == ["What does it cost?", "How fast does a server run it?"]
    assert chapters[-1] == "What runs?"
    assert heads[:3] == ["At a glance", "By device", "Deployment"]
