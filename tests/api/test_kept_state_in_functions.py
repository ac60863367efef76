"""A model that keeps something from its prefill: its decode is traced after a prefill of the same point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the models are those of transformers")

import llm_perf_opt as lpo
from benchmarks.function.exactness import SUBJECTS
from llm_perf_opt.sweeps.function.program.alignment import same_run
from llm_perf_opt.sweeps.run_function import _PhaseTraces


def traces_after_two_prefills(model: str, media_tokens: int, **options: str) -> _PhaseTraces:
    origin = lpo.trace(model, prompt_tokens=4, **options).origin
    assert origin is not None
    traces = _PhaseTraces(origin, media_tokens)
    for batch, context in ((2, media_tokens + 5), (3, media_tokens + 9)):
        traces.graph("prefill", {"batch": batch, "context": context})
    return traces


@pytest.mark.slow
def test_the_offset_of_an_image_is_that_of_the_same_batch(tmp_path: Path, one_thread: None) -> None:
    model = replace(SUBJECTS["qwen25-vl-7b"], layers=1).model(tmp_path)
    image_tokens = 16 + 2  # 112 x 112 pixels in patches of 14, four to a token, and two marks around them
    traces = traces_after_two_prefills(model, image_tokens, image="112x112")
    assert traces.keeps_state
    decode = traces.graph("decode", {"batch": 1, "context": image_tokens + 7})
    fresh = lpo.trace(model, batch=1, prompt_tokens=7, image="112x112")
    assert fresh.graphs[0].workload["context_tokens"] == image_tokens + 7
    assert same_run(decode, fresh.graphs[1]) is None


def test_a_model_that_keeps_nothing_decodes_alone(tmp_path: Path, one_thread: None) -> None:
    model = replace(SUBJECTS["llama32-1b"], layers=1).model(tmp_path)
    traces = traces_after_two_prefills(model, 0)
    assert not traces.keeps_state
    point = {"batch": 4, "context": 11}
    assert same_run(traces.graph("decode", point), lpo.trace(model, batch=4, prompt_tokens=11).graphs[1]) is None
    assert set(traces._known[4, 11]) == {"decode"}
