"""What a reader sees before doing anything: all of it in the window, and large enough to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llm_perf_opt.core.graph_view import GraphView
from tests.browser.large_views import unfolded_view
from tests.browser.open_page import OpenPage
from tests.formats.drawings.made_views import deepseek_ocr_view

Show = Callable[..., OpenPage]
DESK = (1280, 800)
VIEW = replace(deepseek_ocr_view(), caption=("97 modules and 4,421 calls in 97 boxes, 40 of them shown.",))
IN_SIGHT = """(() => {
    const inside = (r, s) => r.left >= s.left && r.right <= s.right && r.top >= s.top && r.bottom <= s.bottom;
    const rect = (e) => e.getBoundingClientRect();
    const room = rect(document.getElementById('canvas'));
    return [...document.querySelectorAll('.box')].filter((box) => !inside(rect(box), room)).map((box) => box.ariaLabel);
})()"""
LETTERS = """Math.min(...[...document.querySelectorAll('.box :is(.name, .path, .cost, .calls)')].map((text) => {
    const scale = text.getBoundingClientRect().width / text.offsetWidth;
    return Number.parseFloat(getComputedStyle(text).fontSize) * scale || 99;
}))"""


@pytest.mark.parametrize("size", [DESK, (1440, 900), (1920, 1080)], ids=str)
def test_the_first_picture_is_whole_and_can_be_read(show: Show, size: tuple[int, int]) -> None:
    page = show(VIEW, size)
    assert page.ask("document.documentElement.scrollWidth") == size[0]
    assert page.ask("document.documentElement.scrollHeight") == size[1]
    assert page.ask(IN_SIGHT) == []
    assert page.ask(LETTERS) >= 8
    assert not page.by_id("map").is_displayed()
    assert page.cut_labels() == []
    labels = page.labels()
    assert len(labels) >= 8
    assert labels == [box.label for box in VIEW.visible() if box.label in labels]
    assert f"{len(labels)} of them shown" in page.by_id("caption").text


def test_a_larger_window_shows_more_of_it(show: Show) -> None:
    sizes = (DESK, (1920, 1080), (2560, 1700))
    counts = [len(show(VIEW, size).labels()) for size in sizes]
    assert counts == sorted(set(counts))
    assert counts[-1] == len(VIEW.visible())


def test_levels_that_were_asked_for_are_open_in_any_window(show: Show) -> None:
    assert len(show(VIEW, DESK).labels()) < len(VIEW.visible())
    assert len(show(VIEW, DESK, fits=False).labels()) == len(VIEW.visible())


def test_no_tool_is_cut_on_a_phone(show: Show) -> None:
    page = show({"prefill": VIEW, "decode": VIEW}, (390, 844))
    assert page.ask("document.documentElement.scrollWidth") == 390
    tools = "[...document.querySelectorAll('header button, header select, header input')]"
    assert page.ask(f"{tools}.filter((e) => e.getBoundingClientRect().right > 380).map((e) => e.id)") == []
    assert page.ask("document.querySelector('#graph').getBoundingClientRect().top") < 260


def test_a_selected_box_does_not_lie_under_the_map(show: Show) -> None:
    page = show(VIEW, DESK)
    for _ in range(3):
        page.by_id("open-level").click()
    hidden = """(() => {
        const rect = (e) => e.getBoundingClientRect();
        const [r, s] = [rect(document.querySelector('.box[aria-selected=true]')), rect(document.getElementById('map'))];
        return !(r.left >= s.right || s.left >= r.right || r.top >= s.bottom || s.top >= r.bottom);
    })()"""
    assert page.by_id("map").is_displayed()
    leaves = [box.label for root in VIEW.roots for box in root.walk() if not box.children]
    for label in [label for label in leaves if page.labels().count(label) == 1][:12]:
        page.click(label)
        assert page.ask(hidden) is False


def test_a_model_of_many_equal_layers_is_cut_rather_than_empty(show: Show) -> None:
    view: GraphView = unfolded_view(layers=61, experts=2)
    page = show(view, DESK)
    assert len(page.labels()) > 30
    assert page.by_id("map").is_displayed()


def test_no_figure_of_the_panel_is_cut(show: Show) -> None:
    page = show(VIEW, DESK)
    for label in page.labels():
        page.click(label)
        assert (
            page.ask("(() => { const p = document.getElementById('panel'); return p.scrollWidth - p.clientWidth; })()")
            == 0
        )
