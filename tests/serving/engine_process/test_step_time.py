"""What is in a step, told from what vLLM's scheduler hands over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.step_time import Batch, RecordedTime, TableTime
from llm_perf_opt.serving.vllm.inside.batches import batch_of
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface

FLAT = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((0.0, 0.0), (0.0, 0.0)))


def scheduled(
    tokens: dict[str, int], cached: dict[str, int], new: dict[str, int] | None = None, **more: Any
) -> SimpleNamespace:
    """`cached` and `new`: name -> tokens computed before."""
    found = {
        "num_scheduled_tokens": tokens,
        "total_num_scheduled_tokens": sum(tokens.values()),
        "scheduled_cached_reqs": SimpleNamespace(req_ids=list(cached), num_computed_tokens=list(cached.values())),
        "scheduled_new_reqs": [
            SimpleNamespace(req_id=name, num_computed_tokens=at) for name, at in (new or {}).items()
        ],
        "scheduled_spec_decode_tokens": {},
        "scheduled_encoder_inputs": {},
    }
    return SimpleNamespace(**{**found, **more})


def test_a_step_that_only_decodes() -> None:
    batch = batch_of(scheduled({"a": 1, "b": 1}, {"a": 100, "b": 50}), {})
    assert batch[:6] == (2, 150, [], 0, 0, 0)


def test_chunks_stand_beside_sequences_that_decode() -> None:
    batch = batch_of(scheduled({"a": 1, "b": 64, "c": 30}, {"a": 100, "b": 128}, {"c": 16}), {})
    assert (batch.decoding, batch.cached_tokens) == (1, 100)
    assert batch.chunks == [(64, 128), (30, 16)]
    assert batch.prompt_tokens == 94
    assert [one.req_id for one in batch.new] == ["c"]


def test_drafted_tokens_are_verified_and_no_chunk() -> None:
    batch = batch_of(scheduled({"a": 4}, {"a": 100}, scheduled_spec_decode_tokens={"a": [1, 2, 3]}), {})
    assert (batch.decoding, batch.cached_tokens, batch.drafted_tokens, batch.chunks) == (1, 100, 3, [])


def test_images_that_are_encoded_in_a_step_are_counted_by_their_tokens() -> None:
    known = {"a": SimpleNamespace(get_num_encoder_embeds=lambda at: (273, 903)[at])}
    batch = batch_of(scheduled({"a": 500}, {}, {"a": 0}, scheduled_encoder_inputs={"a": [0, 1]}), known)
    assert batch.image_tokens == 1176


def test_the_factor_of_a_band_multiplies_the_time_of_the_table() -> None:
    """Two tokens at 1 ms each, and nothing else."""
    line = Curve(at=(1.0, 2.0), seconds=(1e-3, 2e-3))
    none = Curve(at=(1.0,), seconds=(0.0,))
    table = StepTable(tokens=line, head=none, decoding=FLAT, prompts=FLAT, host_s=0.5)
    time = TableTime(table, 1.5)
    assert time.seconds(Batch(2, 10, [], 0, 0, 0, ())) == pytest.approx(3e-3)
    assert time.host_s == 0.5
    assert time.seconds(Batch(1, 10, [], 1, 0, 0, ())) == pytest.approx(3e-3)  # one that decodes, one draft: two rows


def test_recorded_times_come_in_order_and_more_steps_than_times_are_refused() -> None:
    time = RecordedTime((0.25, 0.5))
    step = Batch(1, 1, [], 0, 0, 0, ())
    assert [time.seconds(step), time.seconds(step)] == [0.25, 0.5]
    with pytest.raises(PerfOptError, match="more steps than the 2"):
        time.seconds(step)
