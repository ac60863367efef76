"""Forwards on a machine whose every rate is known take what a person works out by hand."""

from __future__ import annotations

import pytest

from benchmarks.cpu_engine.calibrated_time import CalibratedTimer
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.calibration import Calibration
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.engine_time import ForwardTime, RankForward, WorkKind
from llm_perf_opt.timing.step.step_tables import StepRange, step_table
from tests.timing.made_calibrations import calibration, table
from tests.timing.step.test_engine_blocks import blocks_of

FLOPS_PER_S, BYTES_PER_S, CALL_S = 1e12, 1e10, 2e-6
ANY = (1, 2**13)  # beyond, times grow in proportion


def by_flops(rows: int, columns: int, depth: int) -> float:
    return 2 * rows * columns * depth / FLOPS_PER_S


def by_pairs(heads: int, tokens: int) -> float:
    return 4 * heads * tokens**2 * 64 / FLOPS_PER_S


def machine(*without: str) -> Calibration:
    matmul = {"rows": ANY, "columns": ANY, "depth": ANY}
    tables = (
        *(table(f"{kind}matmul", "float32", matmul, by_flops) for kind in ("", "wide_", "narrow_")),
        *(
            table(f"{kind}attention", "float32", {"heads": ANY, "tokens": ANY}, by_pairs, growth=(1, 2))
            for kind in ("", "odd_")
        ),
        table("copy", "float32", {"elements": ANY}, lambda elements: 4 * elements / BYTES_PER_S),
        table("module_call", "any", {"calls": (2,)}, lambda _: 2 * CALL_S),
    )
    return calibration(*(one for one in tables if one.family not in without))


@pytest.fixture(scope="module")
def dense() -> EngineBlocks:
    return blocks_of("qwen2-0.5b")


def timed(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan | None = None, *without: str) -> ForwardTime:
    asked = RankForward(blocks=blocks, forward=forward, plan=plan or ParallelPlan())
    (found,) = CalibratedTimer(machine(*without), "float32").times([asked])
    return found


def test_matmuls_take_the_time_of_their_multiplications(dense: EngineBlocks) -> None:
    found = timed(dense, Forward(sequences=5, queries=1, keys=200))
    assert found.by_kind[WorkKind.MATMULS] == pytest.approx(5 * 2 * dense.macs_per_token / FLOPS_PER_S)
    assert found.unknown == 0


def test_attention_takes_the_time_of_its_pairs(dense: EngineBlocks) -> None:
    found = timed(dense, Forward(sequences=3, queries=16, keys=400))
    assert found.by_kind[WorkKind.ATTENTION] == pytest.approx(24 * 3 * 14 * 4 * 16 * 400 * 64 / FLOPS_PER_S)


def test_a_module_call_stands_before_every_kernel(dense: EngineBlocks) -> None:
    found = timed(dense, Forward(sequences=1, queries=1, keys=10))
    assert found.by_kind[WorkKind.GAPS] == pytest.approx(found.kernels * CALL_S)


def test_experts_are_two_matmuls_for_each_that_gets_rows() -> None:
    blocks = blocks_of("qwen3-30b-a3b")
    found = timed(blocks, Forward(sequences=4096, queries=1, keys=10))
    every = 48 * 4096 * 8 * 3 * 2048 * 768
    assert found.by_kind[WorkKind.EXPERTS] == pytest.approx(2 * every / FLOPS_PER_S)


def test_what_was_not_measured_is_unknown_and_makes_no_step(dense: EngineBlocks) -> None:
    forward = Forward(sequences=2, queries=1, keys=100)
    assert timed(dense, forward, None, "attention").unknown == 24
    assert timed(dense, forward, ParallelPlan(tp=2)).unknown == 2 * 24 + 2, "of layers, the embedding and the logits"
    timer, short = CalibratedTimer(machine("attention"), "float32"), StepRange(tokens=8, sequences=4, context=64)
    with pytest.raises(PerfOptError, match="No measured table has 24 of the kernels"):
        step_table(dense, timer, ParallelPlan(), reach=short)


def test_a_table_of_steps_adds_up_to_the_forward(dense: EngineBlocks) -> None:
    short = StepRange(tokens=64, sequences=16, context=1024)
    steps = step_table(dense, CalibratedTimer(machine(), "float32"), ParallelPlan(), reach=short, padded_to=())
    wanted = timed(dense, Forward(sequences=6, queries=1, keys=300)).seconds
    assert steps.seconds(6, 6 * 300) == pytest.approx(wanted, rel=0.02)
