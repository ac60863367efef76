"""The sweep over parallel plans: a sample of it, and the parts it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.20", reason="transformers spreads models over meshes from 5.20 on")

from benchmarks.breadth.parallel import PLANS, cause, page, plans_of, run_real, run_weightless
from benchmarks.runner import Caps, run_jobs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "parallel-models.md"
DATA = ROOT / "docs" / "data" / "parallel_breadth.json"
CAPS = Caps(seconds=90, memory_bytes=4 << 30)

# (model type, plan) -> what transformers does with it
SAMPLE = {
    ("gpt_oss", "tp8 ep8"): "sharded",
    ("llama", "tp8"): "runs",
    ("llama", "pp2 last"): "runs",
    ("llava", "tp2"): "runs",
    ("mixtral", "tp8"): "runs",
    ("mixtral", "tp8 ep8"): "sharded",
    ("olmoe", "tp2"): "runs",
    ("qwen2", "tp8"): "runs",
    ("qwen2_5_vl", "pp2 first"): "refused",
    ("qwen3_moe", "tp8"): "refused",
}


def both_sides(model_type: str) -> dict[str, Any]:
    only = {plan for name, plan in SAMPLE if name == model_type}
    real = run_real(model_type, only)
    return {"status": "ok", "real": real, "ours": run_weightless(model_type, real["rules"], only)}


@pytest.fixture(scope="module")
def sample() -> dict[str, dict[str, Any]]:
    return dict(run_jobs(sorted({name for name, _ in SAMPLE}), both_sides, CAPS, workers=1))


@pytest.mark.slow
@pytest.mark.breadth
def test_what_transformers_accepts_runs_with_the_same_figures(sample: dict[str, dict[str, Any]]) -> None:
    """In one test, so that the sample runs once: weights and collectives of a rank at full size, from both sides."""
    for (name, plan), status in SAMPLE.items():
        assert sample[name]["status"] == "ok", sample[name]
        real, ours = (sample[name][side]["plans"][plan] for side in ("real", "ours"))
        assert real["status"] == status, (name, plan, real)
        assert ours["status"] == ("refused" if status == "refused" else "runs"), (name, plan, ours)
        if status != "refused":
            assert ours["weight_bytes"] == real["weight_bytes"], (name, plan)
        if status == "runs":
            assert ours["collectives"] == real["collectives"], (name, plan)
            assert sum(ours["collectives"].values()) > 0
    assert sample["qwen3_moe"]["real"]["plans"]["tp8"]["cause"] == "4 key heads cannot be split by 8"


def test_plans_follow_the_rules_of_the_model() -> None:
    assert list(plans_of({"tp": 9, "ep": 0, "pp": 0})) == ["tp2", "tp8"]
    assert list(plans_of({"tp": 0, "ep": 3, "pp": 4}, {"tp2", "fsdp8 ep8", "pp2 last"})) == ["fsdp8 ep8", "pp2 last"]
    assert plans_of({"tp": 0, "ep": 0, "pp": 0}) == {}


def test_a_refusal_names_the_heads_that_do_not_divide() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(num_attention_heads=32, num_key_value_heads=4)
    assert cause(config, PLANS["tp8"], "RuntimeError: shape") == "4 key heads cannot be split by 8"
    assert cause(config, PLANS["tp2"], "RuntimeError: shape\n is invalid") == "RuntimeError: shape is invalid"


def test_the_page_counts_what_is_accepted_and_what_runs_of_it() -> None:
    rules = {"tp": 9, "ep": 0, "pp": 0}
    runs = {"status": "runs", "weight_bytes": 10, "collectives": {"c10d.allreduce_.default 4": 2}}
    refused = {"status": "refused", "message": "ValueError: no", "cause": "3 heads cannot be split by 8"}
    records = {
        "a real": {"status": "ok", "class": "A", "rules": rules, "plans": {"tp2": runs, "tp8": refused}},
        "a weightless": {"status": "ok", "plans": {"tp2": runs | {"weight_bytes": 12}, "tp8": refused}},
        "b real": {"status": "ok", "class": "B", "rules": rules, "plans": {"tp2": runs, "tp8": runs}},
        "b weightless": {"status": "timeout", "message": "more than 9 s"},
        "c real": {"status": "ok", "class": "C", "rules": {"tp": 0, "ep": 0, "pp": 0}},
        "d real": {"status": "ok", "class": "D", "rules": rules, "plans": {"tp2": runs}},
    }
    text = page({"transformers": "1", "torch": "2", "model_types": 4}, records)
    assert "4 of 4 model types examined: 3 carry a plan" in text
    assert "transformers accepts 4 of 5 plans; of these 3 were traced and **1 run here, 33.3%**." in text
    assert "The other 1 were not traced yet." in text
    assert "| tp2 | 3 | 3 | 0 | 0 | 1 of 2 | 0 of 1 | 1 of 1 |" in text
    assert "| 1 | 3 heads cannot be split by 8 | a (tp8) |" in text
    assert "| a | tp2 | 12 / 10 |" in text
    assert "| b | weightless | more than 9 s |" in text


def test_the_page_is_that_of_the_data() -> None:
    recorded = json.loads(DATA.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(recorded, recorded["records"])
