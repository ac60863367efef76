"""A step table says what the forwards say that it was asked from."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llm_perf_opt.core import store
from llm_perf_opt.core.store import VARIABLE
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
    from llm_perf_opt.timing.step.engine_time import EngineTimer, RankForward

    forward = Forward(sequences=sequences, queries=queries, keys=keys)
    asked = RankForward(blocks=blocks_of(MODEL), forward=forward, plan=ParallelPlan(tp=tensor))
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


def test_a_table_that_was_made_once_is_read_to_the_last_digit_and_another_question_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.timing.step import step_tables
    from llm_perf_opt.timing.step.engine_time import EngineTimer

    def ask(device: str = DEVICE, engine: str = ENGINE, model: str = MODEL, tp: int = 1, padded: int = 8) -> StepTable:
        plan = ParallelPlan(tp=tp)
        timer = EngineTimer.of(device, engine)
        return step_tables.step_table(blocks_of(model), timer, plan, reach=small, padded_to=(padded,))

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    small = step_tables.StepRange(tokens=32, sequences=2, context=64)
    made = ask()
    files = len(list((tmp_path / "step times").iterdir()))
    with monkeypatch.context() as without_maker:
        without_maker.setattr(step_tables, "_table", lambda *_: pytest.fail("the table is there already"))
        assert ask() == made
    ask(device="l4"), ask(engine="trtllm"), ask(model="qwen3-30b-a3b"), ask(tp=2), ask(padded=4)
    small = step_tables.StepRange(tokens=32, sequences=4, context=64)
    ask()
    monkeypatch.setattr(store, "program_digest", lambda: "another program")
    ask()
    assert (files, len(list((tmp_path / "step times").iterdir()))) == (1, 8)
