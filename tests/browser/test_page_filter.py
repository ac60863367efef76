"""A filtered picture in a browser: boxes left out, shares of the metric that was asked for, experts in their layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.graphs.view import group
from tests.browser.open_page import OpenPage
from tests.graphs.made_decoder import decoder
from tests.graphs.made_runs import boxes

Show = Callable[[GraphView], OpenPage]


def test_boxes_left_out_say_how_many_modules_they_stand_for(show: Show) -> None:
    view = group(decoder(), only="attention,head")
    page = show(view)
    assert page.labels() == [box.label for box in view.visible()]
    assert "left out: 2 modules of vision" in page.labels()
    assert page.overlaps() == []
    assert page.cut_labels() == []
    assert any("Left out: 17 modules, 17 calls, 92.9 % of FLOPs" in line for line in page.texts("#panel .caption li"))
    page.click("left out: 2 modules of vision")
    assert page.texts("#panel .box-title h2") == ["left out"]
    assert page.texts("#panel p.mono") == ["2 modules of vision"]
    assert {"tower", "tower.proj"} <= set(page.texts("#panel li.mono"))


def test_the_stages_of_a_filtered_page_add_up_to_the_whole(show: Show) -> None:
    whole, part = (
        show(group(decoder())).texts("#panel table"),
        show(group(decoder(), only="norm")).texts("#panel table"),
    )
    assert part == whole  # totals and stages


def test_calls_of_a_family_told_apart_by_cost_count_once(show: Show) -> None:
    view = group(decoder())
    (layers,) = [box for box in boxes(view) if box.path == "layers.[0-2]"]
    part = replace(layers, id="part", path="layers.[0,1,2]", children=(), arrows=())
    split = replace(layers, is_split=True, children=(part,), arrows=())
    page = show(replace(view, roots=(split,)))
    page.choose("metric", "calls")
    assert page.ask("arguments[0].querySelector('.cost').textContent", page.box(split.label)).startswith("3 in all")


def test_an_expert_shows_what_its_layer_says(show: Show) -> None:
    view = group(decoder())
    root = replace(view.roots[0], layer_context={"num_experts": 64, "top_k": 6})
    page = show(replace(view, roots=(root,)))
    page.click(root.label)
    assert any("Experts of its layer" in text and "64" in text for text in page.texts("#panel table.params"))
