"""One step: a prediction and a table of steps agree to the last digit, and no step is faster than a smaller one."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import llm_perf_opt as lpo
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.step_tables import rising
from tests.timing.kernels.measured_tables import needs_tables
from tests.timing.step.test_engine_blocks import blocks_of

if TYPE_CHECKING:
    from llm_perf_opt.timing.step.step_table import StepTable

ENGINE = "vllm"
SECONDS = st.floats(1e-6, 1.0)


def table_of(blocks: EngineBlocks, device: str, plan: ParallelPlan) -> StepTable:
    from llm_perf_opt.timing.step.engine_time import EngineTimer
    from llm_perf_opt.timing.step.step_tables import step_table

    cluster = parse_cluster(f"{plan.ranks}x {device}")
    return step_table(blocks, EngineTimer.of(device, ENGINE, cluster), plan)


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=SECONDS))
def test_rising_times_never_fall_and_keep_their_ends(seconds: np.ndarray) -> None:
    found = rising(seconds)
    for axis in range(seconds.ndim):
        assert (np.diff(found, axis=axis) >= -1e-15).all()
    assert seconds.min() * (1 - 1e-9) <= found.min()
    assert found.max() <= seconds.max() * (1 + 1e-9)
    assert rising(found) == pytest.approx(found), "times that rise stay as they are"


def test_an_error_is_shared_by_both_sides() -> None:
    assert rising(np.array([1.0, 4.0, 1.0, 9.0])) == pytest.approx([1.0, 2.0, 2.0, 9.0])


@needs_tables
@pytest.mark.parametrize(
    ("model", "plan", "device"),
    [
        ("qwen2-0.5b", {}, "h100-sxm"),
        ("qwen2-0.5b", {"tp": 2}, "rtx-4090"),  # whose collectives no table has
        ("gpt-oss-120b", {}, "h100-sxm"),
        ("qwen3-30b-a3b", {}, "h100-sxm"),
        ("qwen3-30b-a3b", {"tp": 4}, "h100-sxm"),
    ],
)
def test_a_prediction_is_the_step_that_a_replay_takes(model: str, plan: dict[str, int], device: str) -> None:
    from tests.timing.step.test_engine_blocks import CONFIGS

    trace = lpo.trace(str(CONFIGS / model), batch=6, prompt_tokens=200, decode_steps=1, **plan)
    ranks = ParallelPlan(**plan)
    answer = trace.predict(f"{ranks.ranks}x {device}", execution="fused", rates="tables", engine=ENGINE)
    table = table_of(blocks_of(model), device, ranks)
    prefill, decode = (stage.expected_s for stage in answer.stages)
    assert decode == pytest.approx(table.seconds(6, 6 * 201), rel=1e-12)
    assert prefill == pytest.approx(table.seconds(0, 0, [(200, 0)] * 6), rel=1e-12)


@needs_tables
def test_a_matmul_that_no_table_has_is_in_the_step_by_its_roofline() -> None:
    from llm_perf_opt.core.hardware import find_device
    from llm_perf_opt.timing.kernels.times import TimeOrigin
    from llm_perf_opt.timing.step.engine_time import EngineTimer, RankForward

    blocks, forward = blocks_of("qwen2-0.5b"), Forward(sequences=4, queries=1, keys=64)
    wide = replace(blocks, matmuls=tuple(replace(one, weight_format="float32") for one in blocks.matmuls))
    (time,) = EngineTimer.of("h100-sxm", ENGINE).times([RankForward(blocks=wide, forward=forward, plan=ParallelPlan())])
    weights = sum(4 * one.columns * one.depth * one.layers for one in wide.matmuls)
    assert time.unknown == 0
    assert time.by_origin[TimeOrigin.ROOFLINE] > weights / find_device("h100-sxm").bandwidth_bytes_per_s


@needs_tables
@pytest.mark.parametrize("seed", range(12))
def test_a_larger_step_is_never_faster_nor_any_step_faster_than_physics(seed: int) -> None:
    from tests.timing.step.step_rules import broken_rules, drawn

    number = random.Random(seed)
    asked = drawn(number, ["qwen2-0.5b", "qwen3-30b-a3b", "deepseek-r1"])
    assert list(broken_rules(asked, number)) == []


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("qwen2-0.5b", {"tp": 2}),
        ("qwen3-30b-a3b", {"tp": 4}),
        ("qwen3-30b-a3b", {"tp": 4, "ep": 4}),
        ("gpt-oss-120b", {"tp": 8}),
    ],
)
def test_one_rank_tells_the_blocks_of_the_whole_model(model: str, plan: dict[str, int]) -> None:
    from tests.timing.step.test_engine_blocks import CONFIGS

    whole = blocks_of(model)
    rank = engine_blocks(lpo.trace(str(CONFIGS / model), batch=4, prompt_tokens=16, **plan).graphs[-1])
    for field in fields(whole):
        if field.name != "needs":
            assert getattr(rank, field.name) == getattr(whole, field.name), field.name
