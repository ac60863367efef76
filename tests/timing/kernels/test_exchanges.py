"""Exchanges: bytes are twice the elements of the tables, and other links get none."""

from __future__ import annotations

import numpy as np

from llm_perf_opt.timing.kernels.exchanges import Exchange
from llm_perf_opt.timing.kernels.kernel_tables import kernel_tables
from llm_perf_opt.timing.kernels.times import TimeOrigin
from tests.timing.kernels.measured_tables import needs_tables


@needs_tables
def test_a_large_all_reduce_runs_near_the_speed_of_the_links() -> None:
    """Eight H100: 900 GB/s of NVLink both ways, 450 one way; the switch reduces on the way, so a little more."""
    size = np.array([2**30])
    for engine in ("vllm", "sglang", "trtllm"):
        times = kernel_tables("h100-sxm", engine).all_reduce(np.array([8]), size)
        bus = 2 * 7 / 8 * size[0] / times.seconds[0]
        assert 400e9 < bus < 500e9, engine
        assert times.origins == [TimeOrigin.MEASURED]


@needs_tables
def test_a_short_all_reduce_of_an_engine_beats_nccl() -> None:
    ranks, size = np.array([8]), np.array([16 * 8192 * 2])
    tables = kernel_tables("h100-sxm", "vllm")
    assert tables.all_reduce(ranks, size).seconds[0] < tables.collective(Exchange.ALL_REDUCE, ranks, size).seconds[0]


@needs_tables
def test_gathering_moves_half_of_what_reducing_moves() -> None:
    tables, ranks, size = kernel_tables("h200-sxm", None), np.array([8]), np.array([2**29])
    gather, reduce = (
        tables.collective(one, ranks, size).seconds[0] for one in (Exchange.ALL_GATHER, Exchange.ALL_REDUCE)
    )
    assert 0.4 < gather / reduce < 0.8


@needs_tables
def test_sizes_between_rows_and_ranks_between_rows_say_so() -> None:
    times = kernel_tables("h100-sxm", "vllm").all_reduce(np.array([8, 6]), np.array([300_000, 2**20]))
    assert times.origins == [TimeOrigin.INTERPOLATED, TimeOrigin.SCALED]


@needs_tables
def test_a_device_with_other_links_gets_none() -> None:
    times = kernel_tables("h100-pcie", "vllm").all_reduce(np.array([8]), np.array([2**20]))
    assert times.origins == [TimeOrigin.ROOFLINE]
    assert np.isnan(times.seconds).all()


@needs_tables
def test_a_large_gathering_runs_below_the_speed_of_the_links_and_not_far_below() -> None:
    """Eight H100: a rank receives seven eighths of the whole at no more than the 450 GB/s of its links one way."""
    size = np.array([2**29])
    for exchange in (Exchange.ALL_GATHER, Exchange.REDUCE_SCATTER):
        times = kernel_tables("h100-sxm", None).collective(exchange, np.array([8]), size)
        assert 300e9 < 7 / 8 * size[0] / times.seconds[0] < 450e9, exchange
