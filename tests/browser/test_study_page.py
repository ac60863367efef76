"""The page of a study in a real browser: hover, zoom, brush, filters and keys, against points that are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from llm_perf_opt.core.report import BANDS, FIELDS, Column, Kind, Note, Report, StudyView, Table
from llm_perf_opt.formats.html_format import study_page_text
from tests.browser.conftest import resize

DEVICES = ("l4", "h100-sxm", "</script><b>x")
BATCHES = (1, 4, 16, 64)


def study_view() -> StudyView:
    """Twelve points: batch b on device d takes b * (3 - d) ms a token, and makes 1000 * b**0.5 * (d + 1) tokens/s."""
    rows = []
    for place, device in enumerate(DEVICES):
        for batch in BATCHES:
            low = dict.fromkeys(BANDS, 0.5)
            low |= {"tpot_s": batch * (3 - place) / 1000, "tokens_per_s": 1000 * math.sqrt(batch) * (place + 1)}
            bands = {
                f"{name}_{edge}": value * (1 if edge == "low" else 4)
                for name, value in low.items()
                for edge in ("low", "high")
            }
            texts = {"model": "one", "device": device, "plan": "one device", "weights": "bfloat16", "workload": "chat"}
            rows.append({**texts, "device_count": 1, "global_batch": batch, "context": 1024, "watts": 300, **bands})
    table = Table(title="Best", columns=(Column("device"), Column("tokens", Kind.COUNT)), rows=(("l4", 3),))
    return StudyView(
        title="A study",
        points={name: [row[name] for row in rows] for name in FIELDS},
        total=12,
        currency="USD",
        is_pages=False,
        left_out="",
        report=Report(title="A study", chapters=(Report(title="Best", tables=(table,), notes=(Note("made"),)),)),
    )


class StudyPage:
    """An open page of the study above; points are known by device and batch."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def ask(self, expression: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {expression}", *arguments)

    def points(self) -> list[tuple[float, float]]:
        """Where the points are drawn, as offsets from the corner of the chart."""
        found: list[tuple[float, float]] = [
            tuple(pair)
            for pair in self.ask("""(() => {
            const room = document.getElementById('chart').getBoundingClientRect();
            return [...document.querySelectorAll('#chart .point')].map((e) => e.getBoundingClientRect())
                .map((r) => [r.left + r.width / 2 - room.left, r.top + r.height / 2 - room.top]);
        })()""")
        ]
        return found

    def hand(self) -> ActionChains:
        return ActionChains(self.driver, duration=50)

    def at(self, hand: ActionChains, x: float, y: float) -> ActionChains:
        """Moves the hand to an offset from the corner of the chart."""
        chart = self.driver.find_element("id", "chart")
        width, height = self.ask("[arguments[0].clientWidth, arguments[0].clientHeight]", chart)
        return hand.move_to_element_with_offset(chart, round(x - width / 2), round(y - height / 2))

    def spread(self) -> float:
        return max(x for x, _ in self.points()) - min(x for x, _ in self.points())

    def rows(self) -> list[list[str]]:
        return self.ask(
            "[...document.querySelectorAll('#picked tbody tr')].map((row) => [...row.cells].map((e) => e.textContent))"
        )

    def tip(self) -> str | None:
        return self.ask("(() => { const t = document.getElementById('tip'); return t.hidden ? null : t.innerText; })()")


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[StudyPage]:
    file = tmp_path / "study.html"
    file.write_text(study_page_text(study_view()), encoding="utf-8")
    resize(browser, (1280, 1000))
    browser.get(file.as_uri())
    yield StudyPage(browser)
    resize(browser, (1280, 800))
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_every_point_is_drawn_and_the_frontier_is_what_nothing_beats(page: StudyPage) -> None:
    assert len(page.points()) == 12
    # Along the fastest device a larger batch is slower and makes more; every other device is slower and makes less.
    best = [["one", DEVICES[2], "one device", "bfloat16", str(batch), "1,024"] for batch in BATCHES]
    assert [row[:6] for row in page.rows()] == best
    assert "12 points, 4 of them on the frontier" in page.ask("document.getElementById('chart-words').textContent")


def test_pointing_at_a_point_tells_its_figures_and_draws_its_band(page: StudyPage) -> None:
    assert page.tip() is None
    x, y = max(page.points())  # the slowest: batch 64 on the slowest device
    page.at(page.hand(), x, y).perform()
    tip = page.tip() or ""
    assert "l4" in tip and "64" in tip
    assert "192 ms \N{EN DASH} 768 ms" in tip  # 64 * 3 ms, and four times that
    assert "8,000 \N{EN DASH} 32,000" in tip  # tokens a second
    assert page.ask("document.querySelectorAll('#chart .band').length") == 2
    corner = page.ask(
        "(() => { const r = document.getElementById('stage').getBoundingClientRect(); return r.right; })()"
    )
    assert page.ask("document.getElementById('tip').getBoundingClientRect().right") <= corner
    page.at(page.hand(), x, 12).perform()
    assert page.tip() is None
    assert page.ask("document.querySelectorAll('#chart .band').length") == 0


def test_the_wheel_and_the_buttons_zoom_and_reset_goes_back(page: StudyPage) -> None:
    before, points = page.spread(), page.points()
    chart = page.driver.find_element("id", "chart")
    ActionChains(page.driver).scroll_from_origin(ScrollOrigin.from_element(chart), 0, -240).perform()
    wheeled = page.spread()
    assert wheeled > 1.2 * before
    page.driver.find_element("id", "zoom-in").click()
    page.driver.execute_async_script("setTimeout(arguments[0], 400)")
    assert page.spread() == pytest.approx(1.5 * wheeled, rel=0.02)
    page.driver.find_element("id", "reset").click()
    assert [place for point in page.points() for place in point] == pytest.approx([*sum(points, ())], abs=1)


def test_a_drag_moves_the_chart(page: StudyPage) -> None:
    page.driver.find_element("id", "zoom-in").click()
    page.driver.execute_async_script("setTimeout(arguments[0], 400)")
    before = page.points()
    page.at(page.hand(), 500, 60).click_and_hold().move_by_offset(60, 0).release().perform()
    assert page.points()[0][0] == pytest.approx(before[0][0] + 60, abs=2)


@pytest.mark.parametrize("by_shift", [False, True], ids=["switch", "shift"])
def test_a_brush_selects_the_points_in_it_for_the_table(page: StudyPage, by_shift: bool) -> None:
    points = page.points()
    left, right = sorted(points)[0], sorted(points)[3]
    wanted = [point for point in points if point[0] <= right[0]]
    hand = page.hand()
    if by_shift:
        hand.key_down(Keys.SHIFT)
    else:
        page.driver.find_element("id", "brushing").click()
    ends = (left[0] - 12, min(y for _, y in wanted) - 12), (right[0] + 2, max(y for _, y in wanted) + 12)
    page.at(hand, *ends[0]).click_and_hold()
    page.at(hand, *ends[1])
    hand.perform()
    assert page.ask("document.querySelectorAll('#chart .brush').length") == 1
    page.hand().release().key_up(Keys.SHIFT).perform()
    assert page.ask("document.querySelectorAll('#chart .brush').length") == 0
    assert page.ask("document.getElementById('frontier-title').textContent") == "Selected"
    times = sorted(batch * (3 - place) for place in range(3) for batch in BATCHES)[: len(wanted)]
    shown = sorted(int(row[4]) * (3 - DEVICES.index(row[1])) for row in page.rows())
    assert shown == times
    page.driver.find_element("id", "reset").click()
    assert page.ask("document.getElementById('frontier-title').textContent") == "On the frontier"


def test_filters_and_axes_change_points_and_table(page: StudyPage) -> None:
    off = "[...document.querySelectorAll('#filters label')].find((label) => label.textContent === arguments[0]).click()"
    page.ask(off, DEVICES[2])
    assert len(page.points()) == 8
    assert {row[1] for row in page.rows()} == {"h100-sxm"}
    Select(page.driver.find_element("id", "up")).select_by_value("token-cost")
    assert "USD per million tokens" in page.ask("document.getElementById('chart').textContent")


def test_a_point_of_the_frontier_answers_to_the_keyboard(page: StudyPage) -> None:
    page.ask("document.querySelector('#chart .point.front').focus()")
    assert "global batch 1" in page.ask("document.activeElement.getAttribute('aria-label')")
    assert DEVICES[2] in (page.tip() or "")
    page.ask("document.activeElement.blur()")
    assert page.tip() is None


@pytest.mark.parametrize("size", [(390, 844), (1280, 800), (1920, 1080)], ids=str)
def test_it_fits_every_window_and_names_are_text(browser: Any, page: StudyPage, size: tuple[int, int]) -> None:
    resize(browser, size)
    assert page.ask("document.documentElement.scrollWidth") == size[0]
    assert page.ask("document.querySelectorAll('#filters b, #picked b, main b').length") == 0
    assert page.ask("document.getElementById('chart').clientWidth") <= size[0]
