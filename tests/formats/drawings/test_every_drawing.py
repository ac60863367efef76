"""What every drawing of a view owes its reader, run over the registry, so that a new one is tested by existing."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.graph_view import GraphView, Metric
from llm_perf_opt.core.plugins import DRAWINGS
from tests.formats.drawings.made_views import (
    box_of,
    deepseek_ocr_view,
    hostile_view,
    linear,
    unpriced_view,
    view_of,
    view_of_boxes,
)

PICTURES = ("png",)  # bytes, and needs an extra
PAGES = ("html",)  # has tests of its own
TEXTS = [name for name in DRAWINGS.names() if name not in (*PICTURES, *PAGES)]
WEIGHTED = ("text", "markdown", "mermaid", "dot", "svg", "model-explorer-data", "speedscope", "collapsed")


def drawn(name: str, view: GraphView, metric: str = "flops") -> str:
    text = DRAWINGS.get(name)(metric).render(view)
    assert isinstance(text, str)
    return text


def test_no_two_drawings_would_write_the_same_file() -> None:
    suffixes = [DRAWINGS.get(name).suffix for name in DRAWINGS.names()]
    assert len(set(suffixes)) == len(suffixes)


@pytest.mark.parametrize("name", TEXTS)
def test_the_same_view_gives_the_same_bytes(name: str) -> None:
    assert drawn(name, deepseek_ocr_view()) == drawn(name, deepseek_ocr_view())


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_view_is_drawn_as_text_that_any_file_can_hold(name: str) -> None:
    text = drawn(name, hostile_view())
    assert {char for char in text.encode("utf-8").decode("utf-8") if ord(char) < 32} <= {"\n"}
    assert "\u202e" not in text


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("metric", list(Metric))
def test_a_view_without_prices_is_drawn_without_a_made_up_zero(name: str, metric: str) -> None:
    text = drawn(name, unpriced_view(), metric)
    assert "0 FLOP" not in text
    assert "0 params" not in text


@pytest.mark.parametrize("name", ["text", "markdown", "mermaid", "dot", "svg", "model-explorer"])
def test_a_figure_that_misses_ops_without_a_price_is_drawn_as_a_lower_bound(name: str) -> None:
    box = box_of(linear("half", 5_000, 7))
    figures = replace(box.figures, unpriced_ops=3)
    bounded = view_of_boxes(replace(box, figures=figures, own=figures))
    marks = (">= 5", "&gt;= 5", "#62;= 5")  # as each language writes it
    assert any(mark in drawn(name, bounded) for mark in marks)
    assert not any(mark in drawn(name, view_of_boxes(box)) for mark in marks)


@pytest.mark.parametrize("name", TEXTS)
def test_an_empty_view_is_drawn(name: str) -> None:
    assert isinstance(drawn(name, view_of()), str)


@pytest.mark.parametrize("name", WEIGHTED)
def test_the_metric_changes_what_is_drawn(name: str) -> None:
    texts = {drawn(name, deepseek_ocr_view(), metric) for metric in Metric}
    assert len(texts) == len(Metric)


@pytest.mark.parametrize("name", DRAWINGS.names())
def test_an_unknown_metric_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="No metric named 'watts'"):
        DRAWINGS.get(name)("watts")


@pytest.mark.parametrize("name", ["text", "markdown", "mermaid", "dot", "svg"])
def test_a_picture_shows_what_is_open_and_counts_what_is_not(name: str) -> None:
    text = drawn(name, deepseek_ocr_view())
    assert "parfor 60 of 64" in text
    assert "for 24" in text
    assert ("4 inside" if name == "text" else "4 boxes inside") in text
    assert "experts.[0-63].gate_proj" not in text


@pytest.mark.parametrize("name", ["markdown", "json"])
def test_labels_are_class_and_path(name: str) -> None:
    assert "Block @ model.sam_model.blocks.[0-11]" in drawn(name, deepseek_ocr_view())


def test_a_tree_of_text_has_paths_below_the_box_around_and_no_line_beyond_the_page() -> None:
    lines = drawn("text", deepseek_ocr_view()).splitlines()
    assert any("Block @ .blocks.[0-11], for 12" in line for line in lines)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", ["json", "model-explorer", "speedscope"])
def test_what_programs_read_holds_every_box(name: str) -> None:
    view = deepseek_ocr_view()
    text = drawn(name, view)
    assert json.loads(text)
    assert "experts.[0-63].gate_proj" in text


def test_several_roots_are_all_drawn() -> None:
    first, second = deepseek_ocr_view().roots[0].children
    for name in TEXTS:
        assert "lm_head" in drawn(name, view_of_boxes(first, second)) or name == "model-explorer-data"


def test_drawing_is_quick() -> None:
    """All text formats of a view of 59 boxes; measured at about 0.05 s, the bound is for a busy machine."""
    view = deepseek_ocr_view()
    for name in TEXTS:
        DRAWINGS.get(name)
    seconds = []
    for _ in range(3):
        started = time.process_time()
        for name in TEXTS:
            drawn(name, view)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.4
