"""Every kind of page keeps to itself: no request, no other script, no eval; a name never becomes an element."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import resize
from tests.browser.every_page import PAGES

ATTACK = """
const done = arguments[arguments.length - 1];
const refused = [];
addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
const script = document.createElement("script");
script.textContent = "window.broken = true";
document.body.append(script);
const image = new Image();
image.src = "https://example.org/x.png";
let isEvaluated = true;
// Later, since the driver itself may evaluate.
setTimeout(() => { try { new Function("return 1")(); } catch { isEvaluated = false; } });
fetch("https://example.org/").catch(() => {}).then(() => setTimeout(() => done({
  refused: [...new Set(refused)].sort(), isEvaluated, isBroken: Boolean(window.broken),
}), 200));
"""
REQUESTS = "return performance.getEntriesByType('resource').length"
FOREIGN = (
    "return document.querySelectorAll('img, iframe, object, embed, link, form[action], a[href^=javascript]').length"
)
PARTS = "return [document.scripts.length, document.querySelectorAll('style').length]"


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Callable[[str], Any]:
    def open_page(text: str) -> Any:
        page = tmp_path / "page.html"
        page.write_text(text, encoding="utf-8")
        resize(browser, (1280, 800))
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(page.as_uri())
        browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        return browser

    return open_page


@pytest.mark.parametrize("name", PAGES)
def test_nothing_leaves_and_nothing_foreign_runs(opened: Callable[[str], Any], name: str) -> None:
    driver = opened(PAGES[name]())
    assert driver.execute_script(REQUESTS) == 0
    assert driver.execute_script(FOREIGN) == 0
    told = driver.execute_async_script(ATTACK)
    assert {"connect-src", "img-src", "script-src-elem"} <= set(told["refused"])
    assert (told["isEvaluated"], told["isBroken"]) == (False, False)


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("hostile")])
def test_a_hostile_name_adds_no_element(opened: Callable[[str], Any], name: str) -> None:
    plain = opened(PAGES[name.removeprefix("hostile ")]()).execute_script(PARTS)
    driver = opened(PAGES[name]())
    hostile = driver.execute_script(PARTS)
    assert hostile[0] <= plain[0] and hostile[1] == plain[1]
    assert [entry["message"] for entry in driver.get_log("browser")] == []


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("hostile")])
def test_a_long_name_makes_no_page_wider_than_a_phone(browser: Any, tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(PAGES[name](), encoding="utf-8")
    resize(browser, (390, 844))
    browser.get(page.as_uri())
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
