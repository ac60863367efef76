"""The time of a step never falls, is never below physics, and twice the tensor ranks gain at most twice: a sample."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from benchmarks.step_order import DATA, MODELS, PAGE, SECTION, Decoder, falls, judged, section
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

pytest.importorskip("duckdb", reason="the extra `kernels` is not installed")

BROKEN = ("falls", "below_bound", "more_than_twice")
ALONG = Surface(across=(1.0, 64.0), along=(1.0, 4096.0), seconds=((1e-3, 2e-3), (2e-3, 4e-3)))
RISING = StepTable(
    tokens=Curve(at=(1.0, 256.0), seconds=(1e-3, 2e-3)),
    head=Curve(at=(1.0, 256.0), seconds=(1e-4, 2e-4)),
    decoding=ALONG,
    prompts=ALONG,
)


@pytest.mark.parametrize("model", ["openai-community/gpt2", "google/gemma-3-1b-it", "openai/gpt-oss-20b"])
def test_a_sample_of_places_breaks_no_rule(model: str) -> None:
    record = judged(model, 6)
    assert record["places"] == 6
    assert [record[name] for name in BROKEN] == [[], [], []]


def test_a_time_that_falls_is_found() -> None:
    assert list(falls(RISING, random.Random(0))) == []
    sinking = replace(RISING, tokens=Curve(at=(1.0, 256.0), seconds=(2.0, 1e-3)))
    assert any(text.startswith("new tokens: ") for text in falls(sinking, random.Random(0)))


def test_heads_that_share_keys_are_heads_behind_a_window_too() -> None:
    """transformers packs them into the queries of a step whose layers have a mask."""
    decoder = Decoder.of("google/gemma-3-1b-it", prompt_tokens=600)
    assert {(layer.heads, layer.span.window) for layer in decoder.blocks.attentions} == {(4, 512), (4, None)}


def test_the_page_has_the_figures_of_the_record() -> None:
    document = json.loads(DATA.read_text(encoding="utf-8"))
    assert set(document["records"]) <= set(MODELS)
    page = PAGE.read_text(encoding="utf-8")
    written = page.split(f"<!-- begin {SECTION} -->")[1].split(f"<!-- end {SECTION} -->")[0]
    assert written.strip() == section(document["records"])
