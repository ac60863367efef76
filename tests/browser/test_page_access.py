"""Keyboard, screen reader, light and dark, hostile names, no network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from selenium.webdriver.common.keys import Keys

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.formats.visible_text import visible
from tests.browser.open_page import OpenPage
from tests.formats.drawings.made_views import HOSTILE_NAMES, deepseek_ocr_view, hostile_view

Show = Callable[[GraphView], OpenPage]
VIEW = deepseek_ocr_view()
ROOT = "DeepseekOCRForCausalLM @ (root)"
MODEL = "DeepseekOCRModel @ model"


def test_the_tree_can_be_walked_with_the_keyboard(show: Show) -> None:
    page = show(VIEW)
    assert [box.get_attribute("aria-label").split(", ")[0] for box in page.all(".box[tabindex='0']")] == [ROOT]
    page.ask("arguments[0].focus()", page.box(ROOT))
    page.press(Keys.ARROW_DOWN)
    assert page.focused() == MODEL
    page.press(Keys.ARROW_LEFT)
    assert not page.is_open(MODEL)
    page.press(Keys.ARROW_DOWN)
    assert page.focused() == "Linear @ lm_head"
    page.press(Keys.ENTER)
    assert page.box("Linear @ lm_head").get_attribute("aria-selected") == "true"
    page.press(Keys.ARROW_UP)
    page.press(Keys.ARROW_RIGHT)
    assert page.is_open(MODEL)
    page.press(Keys.ARROW_RIGHT)
    assert page.focused() == "Embedding @ model.embed_tokens"
    page.press(Keys.ARROW_LEFT)
    assert page.focused() == MODEL
    page.press(Keys.END)
    assert page.focused() == "Linear @ lm_head"
    page.press(Keys.HOME)
    assert page.focused() == ROOT
    page.press(Keys.ESCAPE)
    assert page.texts("#panel h2") == ["The whole run"]


def test_the_focused_box_is_in_sight_and_marked(show: Show) -> None:
    page = show(VIEW)
    page.ask("arguments[0].focus()", page.box(ROOT))
    page.press(Keys.END)
    inside, outline = page.ask("""(() => {
        const areas = [document.activeElement, document.getElementById('canvas')];
        const [box, room] = areas.map((area) => area.getBoundingClientRect());
        return [box.left >= room.left && box.right <= room.right && box.top >= room.top && box.bottom <= room.bottom,
                getComputedStyle(document.activeElement).outlineStyle];
    })()""")
    assert (inside, outline) == (True, "solid")


def test_a_screen_reader_meets_a_tree(show: Show) -> None:
    page = show(VIEW)
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        roles.setdefault(node.get("role", {}).get("value", ""), []).append(node)
    assert len(roles["treeitem"]) == len(VIEW.visible())
    names = [node["name"]["value"] for node in roles["treeitem"]]
    assert any(("for 11" in name and "TFLOP" in name) or "GFLOP" in name for name in names)
    levels = [prop["value"]["value"] for prop in roles["treeitem"][0]["properties"] if prop["name"] == "level"]
    assert levels == [1]
    assert {"tree", "searchbox", "status", "banner", "main", "complementary"} <= roles.keys()
    unnamed = [node for role in ("button", "combobox", "checkbox") for node in roles[role] if not node["name"]["value"]]
    assert unnamed == []


def test_what_happened_is_said(show: Show) -> None:
    page = show(VIEW)
    page.toggle(MODEL)
    assert page.by_id("status").get_attribute("textContent") == f"{MODEL} closed"
    page.by_id("close-level").click()
    assert "on show" in page.by_id("status").get_attribute("textContent")


def test_light_and_dark_follow_the_system_until_the_reader_chooses(show: Show) -> None:
    page = show(VIEW)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.ask(background)
    page.by_id("theme").click()
    dark = page.ask(background)
    assert light != dark
    page.by_id("theme").click()
    assert page.ask(background) == light
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page = show(VIEW)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        assert page.ask(background) == dark
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_colour_follows_stage_or_cost(show: Show) -> None:
    page = show(VIEW)
    paint = "getComputedStyle(arguments[0]).borderLeftColor"
    first, second = page.box("Linear @ lm_head"), page.box("ImageEncoderViT @ model.sam_model")
    assert page.ask(paint, first) != page.ask(paint, second)
    embedding, norm = page.box("Embedding @ model.embed_tokens"), page.box("DeepseekV2RMSNorm @ model.norm")
    page.choose("colour", "cost")
    assert page.ask(paint, embedding) == page.ask(paint, norm)  # neither costs a FLOP
    assert page.ask(paint, embedding) != page.ask(paint, first)
    page.choose("metric", "parameters")
    assert page.ask(paint, embedding) != page.ask(paint, norm)


def test_hostile_names_are_text_and_nothing_else(show: Show) -> None:
    view = hostile_view()
    page = show(view)
    assert page.ask("document.scripts.length") == 3
    assert page.ask("document.title").split() == visible(view.title).split()
    assert page.ask("document.querySelectorAll('b, a, img, iframe').length") == 0
    assert len(page.all("[role=treeitem]")) == len(view.visible())
    inner = view.roots[0].children[0]
    for box in inner.children:
        number = page.ask(
            "[...document.querySelectorAll('.box')].find((b) => b.dataset.box === String(arguments[0])).id",
            inner.children.index(box) + 2,
        )
        page.ask("document.querySelector(`#${arguments[0]} > .head`).click()", number)
        assert page.texts("#panel h2") == [visible(box.class_name)]
    widest = page.ask("Math.max(...[...document.querySelectorAll('.head')].map((e) => e.scrollWidth - e.clientWidth))")
    assert widest <= 0
    page.search(HOSTILE_NAMES[0])
    assert len(page.all(".box.hit")) >= 2


def test_the_policy_lets_nothing_out_and_no_other_script_in(show: Show) -> None:
    page = show(VIEW)
    refused = page.driver.execute_async_script("""
        const done = arguments[arguments.length - 1];
        const seen = [];
        addEventListener('securitypolicyviolation', (event) => seen.push(event.effectiveDirective));
        const script = document.createElement('script');
        script.textContent = 'window.broken = true';
        document.body.append(script);
        const image = new Image();
        image.src = 'https://example.org/x.png';
        const finish = () => done([seen.sort(), window.broken ?? null]);
        fetch('https://example.org/').catch(() => {}).then(() => setTimeout(finish, 200));
    """)
    assert refused == [["connect-src", "img-src", "script-src-elem"], None]
    assert all("Content Security Policy" in message or "example.org" in message for message in page.console())
    assert (
        page.ask(
            "performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('https://example.org')).length"
        )
        == 0
    )
