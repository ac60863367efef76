"""Layers with a state: told from the model's own attributes, launched once a layer, priced by a measured rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import StateShape
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_mixers import EngineStates
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from llm_perf_opt.timing.step.engine_time import EngineTimer, RankForward, WorkKind
from llm_perf_opt.timing.step.step_tables import StepRange, step_table
from tests.timing.kernels.measured_tables import needs_tables
from tests.timing.step.test_engine_blocks import blocks_of

STEP = Forward(sequences=16, queries=1, keys=1024)
STATE_BYTES = 64 * 128 * 128 * 4  # of one layer: a matrix for each of 64 heads of values, in 32 bits


@pytest.fixture(scope="module")
def mixed() -> EngineBlocks:
    """Three of four layers carry a state."""
    return blocks_of("qwen3.5-397b-a17b")


def test_heads_and_bytes_are_those_of_the_model(mixed: EngineBlocks) -> None:
    states = mixed.states
    assert states is not None
    assert (states.layers, states.key_heads, states.value_heads) == (45, 16, 64)
    assert STATE_BYTES <= states.layer_bytes <= 1.1 * STATE_BYTES, "the window of a convolution beside it"


def test_a_rank_has_its_share_of_the_heads(mixed: EngineBlocks) -> None:
    kernels = forward_kernels(mixed, STEP, ParallelPlan(tp=8))
    ((shape, count),) = [(one.shape, count) for one, count in kernels if isinstance(one.shape, StateShape)]
    assert (shape, count) == (StateShape(sequences=16, queries=1, key_heads=2, value_heads=8), 45)


def test_every_layer_with_attention_leaves_none() -> None:
    assert blocks_of("qwen2-0.5b").states is None


@needs_tables
def test_a_measured_rule_takes_its_row(mixed: EngineBlocks) -> None:
    """On a B200 with 8 heads and 16 sequences SGLang measured 2.1 us for the convolution and 5.8 us for the rule."""
    timer = EngineTimer.of("b200-sxm", "sglang")
    asked = RankForward(blocks=mixed, forward=STEP, plan=ParallelPlan(tp=8))
    (time,) = timer.times([asked])
    assert time.by_kind[WorkKind.STATES] == pytest.approx(45 * 7.9e-6, rel=0.02)
    unknown = replace(mixed, states=EngineStates(layers=45, layer_bytes=STATE_BYTES))
    (by_bytes,) = timer.times([replace(asked, blocks=unknown)])
    assert 0 < by_bytes.by_kind[WorkKind.STATES] < time.by_kind[WorkKind.STATES]


@needs_tables
def test_prompts_of_one_step_share_a_launch(mixed: EngineBlocks) -> None:
    """SGLang measured 150 us for eight prompts of 1,024 tokens at once, and 75 us for one alone."""
    reach = StepRange(tokens=8192, sequences=64, context=16384)
    table = step_table(mixed, EngineTimer.of("b200-sxm", "sglang"), ParallelPlan(tp=8), reach=reach)
    assert table.states is not None
    assert table.states(8, 1024) == pytest.approx(45 * 149e-6, rel=0.05)
    assert table.states(1, 1024) == pytest.approx(45 * 74.5e-6, rel=0.05)
