"""Rows go to every rank of the experts, or to the ranks of their experts alone: bytes by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import ExpertsShape
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks, EngineExperts
from llm_perf_opt.timing.step.engine_step import Forward, are_rows_sent, forward_kernels

EXPERTS = EngineExperts(
    hidden=4096,
    inner=1536,
    experts=128,
    chosen=8,
    weight_format="fp8",
    dtype="float8_e4m3fn",
    is_gated=True,
    layers=94,
)
BLOCKS = EngineBlocks(  # the experts of Qwen3-235B-A22B
    hidden=4096,
    layers=0,
    reduced=0,
    layer_norms=0,
    matmuls=(),
    attentions=(),
    experts=(EXPERTS,),
    norms=(),
    states=None,
    cache_number_bytes=2,
)


def _payloads(ranks: int) -> dict[tuple[CollectiveKind, int], int]:
    plan = ParallelPlan(tp=1, attention_dp=ranks, ep=ranks)
    kernels = forward_kernels(BLOCKS, Forward(sequences=64 * ranks, queries=1, keys=10), plan)
    sent = [(kernel.collective, count) for kernel, count in kernels if kernel.collective is not None]
    return {(collective.kind, collective.payload_bytes): count for collective, count in sent}


def test_few_ranks_gather_every_row() -> None:
    whole = 64 * 8 * 4096 * 2
    assert _payloads(8) == {(CollectiveKind.ALL_GATHER, whole): 94, (CollectiveKind.REDUCE_SCATTER, whole): 94}


def test_many_ranks_send_a_row_once_to_each_rank_with_an_expert_of_it() -> None:
    """64 rows of a rank, each to 7.2 of 32 ranks in the mean: in 8 bits there, in 16 back."""
    copies = 64 * 32 * (1 - (31 / 32) ** 8)
    there, back = round(copies * 4096), round(copies * 4096 * 2)
    assert _payloads(32) == {(CollectiveKind.ALL_TO_ALL, there): 94, (CollectiveKind.ALL_TO_ALL, back): 94}


@pytest.mark.parametrize(("ranks", "is_whole", "is_sent"), [(8, True, False), (16, True, True), (16, False, False)])
def test_rows_are_sent_where_ranks_outnumber_the_experts_of_a_token(ranks: int, is_whole: bool, is_sent: bool) -> None:
    plan = ParallelPlan(tp=1, attention_dp=ranks, ep=ranks if is_whole else 1)
    assert are_rows_sent(EXPERTS, plan) == is_sent
    (shape,) = [
        kernel.shape
        for kernel, _ in forward_kernels(BLOCKS, Forward(sequences=64, queries=1, keys=10), plan)
        if kernel.shape is not None
    ]
    assert isinstance(shape, ExpertsShape) and shape.are_rows_sent == is_sent


def test_one_rank_of_tensor_parallelism_has_all_rows() -> None:
    assert not are_rows_sent(EXPERTS, ParallelPlan(tp=16, ep=16))
