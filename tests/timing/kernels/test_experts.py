"""Routed experts: work by hand, layers that were measured, layers that were not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.timing.kernels.experts import ExpertsQuery, experts_work, table_formats
from llm_perf_opt.timing.kernels.kernel_tables import experts_query, kernel_tables
from llm_perf_opt.timing.kernels.times import TimeOrigin
from tests.timing.kernels.measured_tables import needs_tables

MIXTRAL = ExpertsShape(tokens=64, hidden=4096, inner=14336, experts=8, chosen=2)


def work(*, is_gated: bool = True, **changes: float) -> tuple[float, float]:
    sizes = {"tokens": 1, "hidden": 10, "inner": 20, "experts": 8, "chosen": 2, "expert_ranks": 1} | changes
    query = ExpertsQuery(**{name: np.array([float(size)]) for name, size in sizes.items()})
    flops, moved = experts_work(query, 1.0, 2.0, is_gated=is_gated)
    return float(flops[0]), float(moved[0])


def test_one_token_reaches_as_many_experts_as_it_chooses() -> None:
    flops, moved = work()
    assert flops == 2 * 2 * 3 * 10 * 20
    assert moved == pytest.approx(2 * 3 * 10 * 20 + 2 * (2 * 10 + 3 * 20) * 2)


def test_experts_without_a_gate_have_two_matrices() -> None:
    flops, moved = work(is_gated=False)
    assert flops == 2 * 2 * 2 * 10 * 20
    assert moved == pytest.approx(2 * 2 * 10 * 20 + 2 * (2 * 10 + 2 * 20) * 2)


def test_many_tokens_reach_every_expert_once() -> None:
    _, moved = work(tokens=10_000)
    assert moved == pytest.approx(8 * 600 + 20_000 * 80 * 2)


def test_a_rank_has_its_share_of_tokens_and_experts() -> None:
    whole, quarter = work(tokens=1000), work(tokens=1000, expert_ranks=4)
    assert quarter == pytest.approx((whole[0] / 4, whole[1] / 4))


def test_inner_size_is_that_of_one_tensor_rank() -> None:
    split = ExpertsShape(tokens=1, hidden=8, inner=64, experts=4, chosen=1, tensor_ranks=4)
    assert experts_query([split]).inner.tolist() == [16.0]


def test_formats() -> None:
    assert table_formats("mxfp4") == ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")
    assert table_formats("fp8-block128") == ("fp8_block", "fp8")
    assert table_formats("int8-channel") == ()


@needs_tables
def test_a_measured_layer_is_a_row_and_another_one_is_scaled() -> None:
    other = ExpertsShape(tokens=64, hidden=1280, inner=896, experts=64, chosen=6)
    times = kernel_tables("h100-sxm", "vllm").times([MIXTRAL, other])
    assert times.origins == [TimeOrigin.MEASURED, TimeOrigin.SCALED]
    read = 8 * 3 * 4096 * 14336 * 2 / 3.35e12  # every expert of Mixtral read once
    assert read < times.seconds[0] < 2 * read


@needs_tables
def test_a_layer_without_a_gate_is_a_row_of_its_own_or_scaled_from_one_with_a_gate() -> None:
    nemotron = ExpertsShape(tokens=64, hidden=2688, inner=1856, experts=128, chosen=6, is_gated=False)
    nobody_measured = ExpertsShape(tokens=64, hidden=4096, inner=14336, experts=8, chosen=2, is_gated=False)
    packed = {"weight_format": "mxfp4"}
    gated, scaled = replace(nobody_measured, is_gated=True, **packed), replace(nobody_measured, **packed)
    times = kernel_tables("h200-sxm", "vllm").times([nemotron, gated, scaled])
    assert times.origins[0] is TimeOrigin.MEASURED
    reached = 128 * (1 - (1 - 6 / 128) ** 64)
    read = reached * 2 * 2688 * 1856 * 2 / 4.8e12
    assert read < times.seconds[0] < 1.5 * read, "a third matrix would take half as much again"
    assert times.origins[2] is TimeOrigin.SCALED
    assert 0.6 < times.seconds[2] / times.seconds[1] < 0.75, "two matrices of three, and what a launch takes"


@needs_tables
def test_float32_experts_have_no_table() -> None:
    shape = ExpertsShape(tokens=64, hidden=4096, inner=14336, experts=8, chosen=2, weight_format="float32")
    times = kernel_tables("h100-sxm", "vllm").times([shape])
    assert times.origins == [TimeOrigin.ROOFLINE]
    assert not times.is_known.any()
