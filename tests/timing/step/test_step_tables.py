"""A step table says what the forwards say that it was asked from."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.timing.step.test_engine_blocks import blocks_of

if TYPE_CHECKING:
    from llm_perf_opt.timing.step.step_table import StepTable

pytestmark = pytest.mark.skipif(
    find_spec("duckdb") is None or find_spec("aiconfigurator_core") is None,
    reason="the kernel tables are not installed: pip install 'llm-perf-opt[kernels]'",
)
MODEL, DEVICE, ENGINE = "qwen2-0.5b", "h100-sxm", "vllm"


@cache
def table_of(tensor: int) -> StepTable:
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.timing.step.engine_time import EngineTimer
    from llm_perf_opt.timing.step.step_tables import step_table

    return step_table(blocks_of(MODEL), EngineTimer.of(DEVICE, ENGINE), ParallelPlan(tp=tensor), padded_to=())


def forward_s(tensor: int, sequences: int, queries: int, keys: int) -> float:
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.timing.step.engine_step import Forward
    from llm_perf_opt.timing.step.engine_time import AskedForward, EngineTimer

    forward = Forward(sequences=sequences, queries=queries, keys=keys)
    asked = AskedForward(blocks=blocks_of(MODEL), forward=forward, plan=ParallelPlan(tp=tensor))
    (time,) = EngineTimer.of(DEVICE, ENGINE).times([asked])
    return time.seconds


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(("sequences", "keys"), [(1, 128), (7, 777), (200, 3000)])
def test_a_step_that_decodes_takes_the_time_of_its_forward(tensor: int, sequences: int, keys: int) -> None:
    wanted = forward_s(tensor, sequences, 1, keys)
    assert table_of(tensor).seconds(sequences, sequences * keys) == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("tokens", [64, 900, 5000])
def test_a_prompt_takes_the_time_of_its_forward(tokens: int) -> None:
    table = table_of(1)
    assert table.seconds(0, 0, [(tokens, 0)]) == pytest.approx(forward_s(1, 1, tokens, tokens), rel=0.05)
    assert table.seconds(0, 0, [(tokens, 4000)]) > table.seconds(0, 0, [(tokens, 0)]), "older keys are attended to"
