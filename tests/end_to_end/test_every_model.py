"""Every verb that needs no weights, on every model there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import MODELS


@pytest.mark.parametrize("model", MODELS.names())
def test_its_cost_is_known_with_memory_and_nothing_unexplained(model: str) -> None:
    run = lpo.cost(model, sources=("counted", "torch-counter"))
    assert {graph.phase for graph in run.graphs} == {"prefill", "decode"}
    assert run.flops is not None
    assert run.ledger.unexplained == ()
    assert run.memory is not None and run.memory.total_bytes is not None


def test_an_attention_that_the_library_refuses_is_told_in_words() -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="the code of the model is in transformers 5")
    with pytest.raises(UsageError, match=r"cannot build GOT-OCR 2\.0 with sdpa attention"):
        lpo.trace("got-ocr2", attention="sdpa")


@pytest.mark.slow
def test_the_miniature_answers_what_the_full_size_answers(tmp_path: Path) -> None:
    trace = lpo.trace("deepseek-ocr-tiny", image="200x300", out=tmp_path / "run")
    assert trace.phases == ("prefill", "decode")
    loops = [loop.text for root in trace.graph().view.roots for box in root.walk() for loop in box.loops]
    assert {"for 3", "parfor 8"} <= set(loops)
    bound_s = trace.predict("h100-sxm").lower_bound_s
    assert bound_s is not None and bound_s > 0
    (part,) = lpo.export("deepseek-ocr-tiny", "projector", checks=["export"]).parts
    assert part.ops
    assert lpo.load(tmp_path / "run").stages().total.flops == trace.stages().total.flops
