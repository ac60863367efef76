"""Times of requests from the times of forwards, by hand; and forwards from the tables."""

from importlib.util import find_spec

import pytest

from llm_perf_opt.timing.step.request_time import (
    FirstToken,
    Quantiles,
    banded,
    first_token_shares,
    request_fit,
    time_to_first,
)

SHARES = FirstToken(constant_s=0.002, prompts=1.5, prompts_of_others=0.1, steps=2.0)


def test_a_first_token_waits_for_prompts_and_steps() -> None:
    assert time_to_first(0.011, 0.050, 5, SHARES) == pytest.approx(0.002 + (1.5 + 0.5) * 0.050 + 0.022)


def test_a_request_alone_waits_for_no_other_prompt() -> None:
    assert time_to_first(0.011, 0.050, 1, SHARES) == pytest.approx(0.002 + 0.050 + 0.011)
    times = [time_to_first(0.011, 0.050, in_flight, SHARES) for in_flight in range(1, 8)]
    assert times == sorted(times)
    assert times[3] == pytest.approx(0.002 + (1.5 + 0.4) * 0.050 + 0.022)  # four in flight: as fitted


def test_an_engine_without_shares_takes_those_of_all() -> None:
    assert first_token_shares("other", has_drawn_lengths=True) == request_fit().first_token["all"]
    assert first_token_shares("vllm", has_drawn_lengths=False) == request_fit().first_token["vllm fixed"]


def test_a_band_is_the_quantiles_around_the_expected_time() -> None:
    band = banded(2.0, Quantiles(low=0.8, high=1.2))
    assert (band.low, band.expected, band.high) == (1.6, 2.0, 2.4)


def test_the_fit_of_the_package_names_its_records() -> None:
    fit = request_fit()
    assert fit.records > 2000
    assert fit.tpot.low < 1 < fit.tpot.high
    assert {"all", "vllm range", "sglang range", "trtllm range"} <= set(fit.first_token)


@pytest.mark.skipif(
    find_spec("duckdb") is None or find_spec("aiconfigurator_core") is None,
    reason="the kernel tables are not installed: pip install 'llm-perf-opt[kernels]'",
)
def test_a_forward_is_the_sum_of_its_kernels() -> None:
    from llm_perf_opt.core.parallel_plan import ParallelPlan
    from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables
    from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S
    from llm_perf_opt.timing.sheet_columns import VECTOR_BANDWIDTH, VECTOR_FLOOR_S
    from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
    from llm_perf_opt.timing.step.engine_time import EngineTimer, RankForward, WorkKind
    from tests.timing.step.test_engine_blocks import blocks_of

    blocks, forward, plan = blocks_of("qwen2-0.5b"), Forward(sequences=8, queries=1, keys=512), ParallelPlan()
    (time,) = EngineTimer.of("h100-sxm", "vllm").times([RankForward(blocks=blocks, forward=forward, plan=plan)])
    works = list(forward_kernels(blocks, forward, plan))
    shapes = [(kernel.shape, count) for kernel, count in works if kernel.shape is not None]
    table = kernel_tables("h100-sxm", "vllm").times([shape for shape, _ in shapes]).seconds
    from_tables = sum(count * seconds for (_, count), seconds in zip(shapes, table, strict=True))
    vectors = sum(
        count * (VECTOR_FLOOR_S + kernel.bytes_moved / (VECTOR_BANDWIDTH * 3.35e12))
        for kernel, count in works
        if kernel.shape is None
    )
    gaps = LAUNCH_GAP_S * sum(count for _, count in works)
    assert time.unknown == 0
    assert time.by_kind[WorkKind.GAPS] == pytest.approx(gaps)
    assert time.seconds == pytest.approx(from_tables + vectors + gaps, rel=1e-6)
