"""The page of a real trace, DeepSeek-OCR with 2x3 crops: what it must show, and that it adds up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llm_perf_opt.core.graph_view import GraphView
from llm_perf_opt.graphs.view import group
from tests.browser.open_page import OpenPage
from tests.end_to_end.deepseek_ocr_runs import trace, workload

Show = Callable[[GraphView], OpenPage]
LOOPS = {
    "ImageEncoderViT @ model.sam_model": ["parfor 2"],
    "Block @ model.sam_model.blocks.[0-11]": ["for 12"],
    "VitModel @ model.vision_model": ["parfor 2"],
    "NoTPTransformerBlock @ model.vision_model.transformer.layers.[0-23]": ["for 24"],
    "MlpProjector @ model.projector": ["parfor 2"],
    "DeepseekV2DecoderLayer @ model.layers.0": [],
    "DeepseekV2DecoderLayer @ model.layers.[1-11]": ["for 11"],
    "DeepseekV2MLP @ model.layers.[1-11].mlp.experts.[0-63]": ["parfor 64"],
    "DeepseekV2MLP @ model.layers.[1-11].mlp.shared_experts": [],
}


@pytest.mark.slow
def test_the_page_of_a_gundam_page(show: Show) -> None:
    graph = trace(workload("gundam", [2, 3]), "prefill")
    view = group(graph)
    page = show(view)
    assert page.labels() == [box.label for box in view.visible()]
    assert len(page.labels()) <= 40
    for label, loops in LOOPS.items():
        shown = page.ask(
            "[...arguments[0].querySelectorAll(':scope > .head .loop')].map((e) => e.textContent)", page.box(label)
        )
        assert shown == loops
    assert page.overlaps() == []
    assert page.cut_labels() == []
    page.click("DeepseekOCRForCausalLM @ (root)")
    assert page.figure("flops") == f"{view.totals.flops:,}"


@pytest.mark.slow
def test_every_level_of_the_page_keeps_its_boxes_apart(show: Show) -> None:
    view = group(trace(workload("gundam", [2, 3]), "prefill"))
    page = show(view)
    total = sum(1 for root in view.roots for _ in root.walk())
    while len(page.labels()) < total:
        before = len(page.labels())
        page.by_id("open-level").click()
        assert len(page.labels()) > before
        assert page.overlaps() == []
        assert page.cut_labels() == []


@pytest.mark.slow
def test_a_decode_step_shows_no_vision(show: Show) -> None:
    page = show(group(trace(workload("base", decode_steps=2), "decode")))
    assert [label for label in page.labels() if "sam_model" in label or "vision_model" in label] == []
    assert page.texts("#legend .key") == ["decode"]
