"""A reader opens, searches, clicks and measures; every number is the view's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from llm_perf_opt.core import units
from llm_perf_opt.core.graph_view import Box, GraphView
from tests.browser.open_page import OpenPage
from tests.formats.drawings.made_views import box_of, deepseek_ocr_view, linear, unpriced_view, view_of_boxes

Show = Callable[[GraphView], OpenPage]
VIEW = deepseek_ocr_view()
EXPERTS = "DeepseekV2MLP @ model.layers.[1-11].mlp.experts.[0-63]"
LAYERS = "DeepseekV2DecoderLayer @ model.layers.[1-11]"


def named(label: str) -> Box:
    return next(box for root in VIEW.roots for box in root.walk() if box.label == label)


def test_the_first_picture_shows_the_visible_boxes_nested_as_in_the_view(show: Show) -> None:
    page = show(VIEW)
    assert page.labels() == [box.label for box in VIEW.visible()]
    parents = page.ask(
        "[...document.querySelectorAll('.box')].map(b => b.parentElement.closest('.box')?.ariaLabel ?? '')"
    )
    outer = {child.label: box.label for box in VIEW.visible() for child in box.children}
    assert [text.split(",")[0] for text in parents] == [outer.get(box.label, "") for box in VIEW.visible()]


def test_boxes_do_not_overlap_and_no_label_is_cut(show: Show) -> None:
    page = show(VIEW)
    assert page.overlaps() == []
    assert page.cut_labels() == []


def test_a_family_opens_and_closes(show: Show) -> None:
    page = show(VIEW)
    assert not page.is_open(EXPERTS)
    page.toggle(EXPERTS)
    assert page.is_open(EXPERTS)
    assert {child.label for child in named(EXPERTS).children} <= set(page.labels())
    page.toggle(EXPERTS)
    assert page.labels() == [box.label for box in VIEW.visible()]


@pytest.mark.parametrize(
    "label", [EXPERTS, LAYERS, "DeepseekOCRForCausalLM @ (root)", "ImageEncoderViT @ model.sam_model"]
)
def test_a_click_shows_the_figures_of_the_box(show: Show, label: str) -> None:
    page, box = show(VIEW), named(label)
    page.click(label)
    for key in ("flops", "macs", "bytes_moved", "parameters", "activation_bytes", "unpriced_ops"):
        assert page.figure(key) == f"{getattr(box.figures, key):,}"
    assert page.figure("flops", "own") == units.format_flops(box.own.flops or 0)
    assert page.figure("bytes_moved", "own") == units.format_bytes(box.own.bytes_moved or 0)
    assert page.figure("flops", "of-total") == f"{100 * box.figures.flops / VIEW.totals.flops:.1f} %"  # type: ignore[operator]
    text = page.by_id("panel").text
    for needed in (
        box.class_name,
        "hidden_size",
        "1280",
        "bfloat16[1, 924, 1280]",
        f"{box.calls:,}",
        f"{box.instances:,}",
    ):
        assert needed in text
    assert all(loop.text in text for loop in box.loops)


def test_the_share_of_a_stage_leaves_out_boxes_of_other_stages(show: Show) -> None:
    page = show(VIEW)
    every = [box for root in VIEW.roots for box in root.walk()]
    prefill = sum(box.own.flops or 0 for box in every if box.stage == "prefill")
    page.click(LAYERS)
    assert page.figure("flops", "of-stage") == f"{100 * (named(LAYERS).figures.flops or 0) / prefill:.1f} %"
    page.click("DeepseekOCRForCausalLM @ (root)")
    assert page.figure("flops", "of-stage") == "100.0 %"


def test_stages_and_totals_stand_in_the_panel_before_any_click(show: Show) -> None:
    page = show(VIEW)
    text = page.by_id("panel").text
    assert f"{VIEW.totals.flops:,}" in text
    assert all(stage in text for stage in VIEW.stages)
    assert all(line in text for line in VIEW.caption)


def test_search_opens_what_holds_a_match_and_marks_it(show: Show) -> None:
    page = show(VIEW)
    page.search("experts.[0-63].down")
    wanted = f"Linear @ {named(EXPERTS).path}.down_proj"
    assert page.labels(".box.hit") == [wanted]
    assert page.is_open(EXPERTS)
    assert page.by_id("hits").text == "1 of 1"
    assert page.box(wanted).get_attribute("aria-selected") == "true"
    page.search("siLU")
    assert page.by_id("hits").text == "1 of 3"
    assert {label.split(" @ ")[0] for label in page.labels(".box.hit")} == {"SiLU"}
    page.search("no such module")
    assert page.labels(".box.hit") == []
    assert "Nothing found" in page.by_id("status").get_attribute("textContent")


def test_the_metric_changes_boxes_and_chart(show: Show) -> None:
    page, layers = show(VIEW), named(LAYERS)
    expected = {
        "flops": units.format_flops(layers.figures.flops or 0),
        "bytes_moved": units.format_bytes(layers.figures.bytes_moved or 0),
        "activation_bytes": units.format_bytes(layers.figures.activation_bytes or 0),
        "parameters": units.format_flops(layers.figures.parameters or 0).removesuffix("FLOP").strip(),
    }
    cost = "arguments[0].querySelector('.cost').textContent"
    every = sum(box.calls for root in VIEW.roots for box in root.walk())
    inside = sum(box.calls for box in layers.walk())
    widths = set()
    for metric, text in expected.items():
        page.choose("metric", metric)
        share = (getattr(layers.figures, metric) or 0) / (getattr(VIEW.totals, metric) or 1)
        assert page.ask(cost, page.box(LAYERS)) == f"{text} · {100 * share:.1f} %"
        cell = f".cell[data-box='{page.box(LAYERS).get_attribute('data-box')}'] rect"
        sizes = "[arguments[0], '#cells svg'].map((one) => document.querySelector(one).width.baseVal.value)"
        width, full = page.ask(sizes, cell)
        assert width + 1 == pytest.approx(share * full, abs=0.6)
        widths.add(round(width))
    assert len(widths) >= 2
    page.choose("metric", "calls")
    assert page.ask(cost, page.box(LAYERS)) == f"{inside:,} in all · {100 * inside / every:.1f} %"


def test_chart_and_graph_share_one_selection(show: Show) -> None:
    page = show(VIEW)
    click = "arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    page.ask(click, page.all('.cell[aria-label^="Linear @ lm_head"]')[0])
    assert page.box("Linear @ lm_head").get_attribute("aria-selected") == "true"
    page.click(LAYERS)
    assert page.labels(".cell.selected") == [f"{LAYERS}: {units.format_flops(named(LAYERS).figures.flops or 0)}"]


def test_numbers_beyond_two_to_the_53_stay_exact(show: Show) -> None:
    large = 2**63 + 1
    box = box_of(linear("huge", 0, 0))
    figures = replace(box.figures, flops=large, macs=large // 2, parameters=2**53 + 1)
    page = show(view_of_boxes(replace(box, figures=figures, own=figures)))
    page.click("Linear @ huge")
    assert page.figure("flops") == "9,223,372,036,854,775,809"
    assert page.figure("parameters") == "9,007,199,254,740,993"


def test_what_is_not_known_is_never_zero(show: Show) -> None:
    page = show(unpriced_view())
    page.click("Odd @ odd")
    assert {page.figure(key) for key in ("flops", "macs", "bytes_moved", "parameters")} == {"?"}
    assert "FLOPs: nothing to chart" in page.by_id("cells").text


def test_a_view_without_boxes_is_an_empty_page(show: Show) -> None:
    page = show(view_of_boxes())
    assert page.labels() == []
    assert "FLOPs: nothing to chart" in page.by_id("cells").text


def test_a_figure_that_misses_ops_without_a_price_is_a_lower_bound(show: Show) -> None:
    box = box_of(linear("half", 5_000, 7))
    figures = replace(box.figures, unpriced_ops=3)
    page = show(view_of_boxes(replace(box, figures=figures, own=figures)))
    assert page.texts(".cost") == ["≥ 5.00 kFLOP · 100.0 %"]
    assert page.by_id("chart-title").text == "FLOPs: ≥ 5.00 kFLOP"
    page.choose("metric", "parameters")
    assert page.texts(".cost") == ["7 · 100.0 %"]
