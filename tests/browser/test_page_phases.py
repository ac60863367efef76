"""A run on one page: the reader switches phases, and the address leads back to every picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from selenium.webdriver.common.keys import Keys

from llm_perf_opt.core import units
from llm_perf_opt.core.graph_view import GraphView
from tests.browser.open_page import OpenPage
from tests.formats.drawings.made_views import Node, box_of, deepseek_ocr_view, linear, view_of_boxes

Show = Callable[..., OpenPage]
PREFILL = deepseek_ocr_view()
EXPERTS = "DeepseekV2MLP @ model.layers.[1-11].mlp.experts.[0-63]"
LAYERS = "DeepseekV2DecoderLayer @ model.layers.[1-11]"
HEAD = "Linear @ lm_head"
ANCESTORS = """(() => {
    const outer = (box) => box.parentElement.closest('.box'), found = [];
    for (let box = outer(document.querySelector('.box.match')); box; box = outer(box)) found.push(box.ariaLabel);
    return found.map((label) => label.split(', ')[0]);
})()"""


def decode() -> GraphView:
    """The same modules without the vision, in a stage of its own."""
    head, only = linear("lm_head", 500_000_000, 165_000_000), linear("only_here", 7_000, 7)
    root = Node("DeepseekOCRForCausalLM", "", children=(head, only), arrows=((0, 1),), stage="decode")
    return view_of_boxes(box_of(root), title="deepseek-ocr decode", caption=("a decode step",))


RUN = {"prefill": replace(PREFILL, title="deepseek-ocr prefill"), "decode": decode()}


def switch(page: OpenPage, phase: str) -> None:
    page.ask(
        "[...document.querySelectorAll('#phases button')].find((b) => b.textContent === arguments[0]).click()", phase
    )


def travel(page: OpenPage, steps: int) -> None:
    """As the buttons do; those themselves pass over what came without a real hand on the mouse.

    To a place and not by a distance, so that it can be asked for until the page shows it.
    """
    key = page.ask("navigation.entries()[navigation.currentEntry.index + arguments[0]].key", steps)
    page.ask("void addEventListener('popstate', () => { window.shown = navigation.currentEntry.key })")
    page.wait_until(f"window.shown === '{key}' || void navigation.traverseTo('{key}').finished.catch(() => {{}})")


def pressed(page: OpenPage) -> list[str]:
    return page.texts("#phases [aria-pressed=true]")


def test_a_page_of_one_phase_has_no_switch(show: Show) -> None:
    page = show(PREFILL)
    assert not page.by_id("phases").is_displayed()
    assert page.texts("#panel h2") == ["The whole run"]


def test_the_reader_switches_between_phases_and_finds_them_as_they_were_left(show: Show) -> None:
    page = show(RUN)
    assert pressed(page) == ["prefill"]
    page.toggle(EXPERTS)
    opened = page.labels()
    switch(page, "decode")
    assert pressed(page) == ["decode"]
    assert page.labels() == [box.label for box in RUN["decode"].visible()]
    assert page.ask("document.title") == page.by_id("title").text == "deepseek-ocr decode"
    assert page.texts("#panel h2") == ["The whole decode"]
    assert page.by_id("chart-title").text == f"FLOPs: {units.format_flops(RUN['decode'].totals.flops or 0)}"
    assert page.texts("#legend .key") == ["decode"]
    switch(page, "prefill")
    assert page.labels() == opened
    assert page.overlaps() == []


def test_a_stage_keeps_its_colour_in_every_phase(show: Show) -> None:
    page = show(RUN)
    hues = "[...document.querySelectorAll('#legend .key')].map((key) => key.style.getPropertyValue('--hue'))"
    before = page.ask(hues)
    switch(page, "decode")
    assert page.ask(hues) and not set(page.ask(hues)) & set(before)


def test_what_is_selected_stays_selected_where_the_other_phase_runs_it(show: Show) -> None:
    page = show(RUN)
    page.click(HEAD)
    switch(page, "decode")
    assert page.box(HEAD).get_attribute("aria-selected") == "true"
    assert page.figure("flops") == "500,000,000"
    switch(page, "prefill")
    page.click(LAYERS)
    switch(page, "decode")
    assert page.texts("#panel h2") == ["The whole decode"]


def test_the_address_leads_to_the_same_picture(show: Show) -> None:
    page = show(RUN)
    page.toggle(EXPERTS)
    page.click(LAYERS)
    page.choose("metric", "parameters")
    page.choose("colour", "cost")
    seen = page.labels()
    place = page.ask("location.hash")
    assert "at=model.layers" in place
    page.driver.refresh()
    page.wait_until("document.documentElement.dataset.ready === 'yes'")
    assert page.labels() == seen
    assert page.box(LAYERS).get_attribute("aria-selected") == "true"
    assert page.ask("[document.getElementById('metric').value, document.documentElement.dataset.colour]") == [
        "parameters",
        "cost",
    ]
    other = show(RUN, place=place)
    assert other.labels() == seen
    assert other.texts("#panel .box-title h2") == ["DeepseekV2DecoderLayer"]


def test_back_and_forward_go_through_what_was_seen(show: Show) -> None:
    page = show(RUN)
    first = page.labels()
    page.toggle(EXPERTS)
    opened = page.labels()
    switch(page, "decode")
    page.click(HEAD)
    travel(page, -1)
    assert page.texts("#panel h2") == ["The whole decode"]
    travel(page, -1)
    assert (pressed(page), page.labels()) == (["prefill"], opened)
    travel(page, -1)
    assert page.labels() == first
    travel(page, 3)
    assert pressed(page) == ["decode"]
    assert page.box(HEAD).get_attribute("aria-selected") == "true"


def test_a_search_is_in_the_address_and_typing_it_leaves_one_step_back(show: Show) -> None:
    page = show(RUN)
    before = page.ask("history.length")
    for letter in "down_proj":
        page.by_id("query").send_keys(letter)
        page.wait_until(
            "new URLSearchParams(location.hash.slice(1)).get('search') === document.getElementById('query').value"
        )
    assert page.ask("history.length") == before + 1
    found = page.labels(".box.hit")
    place = page.ask("location.hash")
    other = show(RUN, place=place)
    assert other.by_id("query").get_attribute("value") == "down_proj"
    assert other.labels(".box.hit") == found
    assert other.by_id("hits").text == "1 of 3"


@pytest.mark.parametrize(
    "place", ["#nonsense", "#phase=vision&at=nowhere&open=9999-99999.x&metric=joy", "#open=&search=%F0%9F%9A%80"]
)
def test_an_address_that_names_nothing_shows_the_page_all_the_same(show: Show, place: str) -> None:
    page = show(RUN, place=place)
    assert pressed(page) == ["prefill"]
    assert page.labels()[0] == "DeepseekOCRForCausalLM @ (root)"


def test_the_path_to_a_match_is_marked_and_keys_go_through_the_matches(show: Show) -> None:
    page = show(RUN)
    page.search("down_proj")
    paths = []
    for expected in ("1 of 3", "2 of 3", "3 of 3", "1 of 3"):
        assert page.by_id("hits").text == expected
        assert page.labels(".box.match") == page.labels(".box[aria-selected=true]")
        ancestors = page.ask(ANCESTORS)
        assert sorted(page.labels(".box.on-path")) == sorted(ancestors)
        paths.append(ancestors[0])
        page.by_id("query").send_keys(Keys.ENTER)
    assert len(set(paths)) == 3
    page.by_id("query").send_keys(Keys.SHIFT, Keys.ENTER)
    assert page.by_id("hits").text == "1 of 3"
    page.by_id("query").send_keys(Keys.ESCAPE)
    assert page.all(".box.on-path, .box.hit, .box.match") == []


def test_a_search_says_which_other_phase_has_it(show: Show) -> None:
    page = show(RUN)
    page.search("only_here")
    assert page.by_id("hits").text == "none; 1 in decode"
    switch(page, "decode")
    assert page.labels(".box.hit") == ["Linear @ only_here"]
    assert page.by_id("hits").text == "1 found"
