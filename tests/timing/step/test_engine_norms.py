"""Norms between projections and scores: one kernel each, and a collective where they go over the heads of all ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_mixers import EngineNorms
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from tests.timing.step.test_engine_blocks import blocks_of, tiny_blocks

STEP = Forward(sequences=16, queries=1, keys=1024)


@pytest.fixture(scope="module")
def minimax() -> EngineBlocks:
    """Its norms go over 48 heads of queries and 8 of keys together; vLLM sums up the squares of all ranks."""
    return blocks_of("minimax-m2.5")


def reductions(blocks: EngineBlocks, plan: ParallelPlan) -> Counter[int]:
    found = [(kernel.collective, count) for kernel, count in forward_kernels(blocks, STEP, plan)]
    sums = [(one, count) for one, count in found if one is not None and one.kind is CollectiveKind.ALL_REDUCE]
    return Counter({one.payload_bytes: count for one, count in sums})


def test_a_norm_over_all_heads_needs_the_squares_of_all_ranks(minimax: EngineBlocks) -> None:
    assert minimax.norms == (EngineNorms(norms=2, numbers=(48 + 8) * 128, across_heads=2, layers=62),)
    squares, rows = 16 * 2 * 4, 16 * 3072 * 2
    assert reductions(minimax, ParallelPlan(tp=4)) == {rows: 2 * 62 + 1, squares: 62}
    assert not reductions(minimax, ParallelPlan()), "one rank has all heads"


def test_ranks_gather_the_heads_of_other_norms_over_all_heads(tmp_path: Path) -> None:
    """OLMo-2 with four heads of queries and two of keys, 16 wide; a number has two bytes."""
    blocks = tiny_blocks("olmo2", tmp_path)
    assert blocks.norms == (
        EngineNorms(norms=2, numbers=(4 + 2) * 16, gathered=(4 * 16, 2 * 16), is_replicated=True, layers=3),
    )
    found = [(one.collective, count) for one, count in forward_kernels(blocks, STEP, ParallelPlan(tp=2))]
    gathers = [(one, count) for one, count in found if one is not None and one.kind is CollectiveKind.ALL_GATHER]
    assert [(one.payload_bytes, count) for one, count in gathers] == [
        (16 * 128 * 2, 1),  # the logits
        (16 * 4 * 16 * 2, 3),
        (16 * 2 * 16 * 2, 3),
    ]
    assert reductions(blocks, ParallelPlan(tp=2)) == {16 * 64 * 2: 2 * 3 + 1}


def test_a_norm_without_a_weight_is_a_kernel_too(tmp_path: Path) -> None:
    """Llama 4 scales queries and keys in three of four layers, in each head of 16 numbers."""
    (norms,) = tiny_blocks("llama4_text", tmp_path).norms
    assert (norms.norms, norms.numbers, norms.layers) == (2, 2 * 4 * 16, 3)


def test_a_norm_of_single_heads_stays_on_its_rank() -> None:
    blocks = blocks_of("qwen3-30b-a3b")
    assert [(one.norms, one.across_heads, one.layers) for one in blocks.norms] == [(2, 0, 48)]
    assert reductions(blocks, ParallelPlan(tp=4)) == {16 * 2048 * 2: 2 * 48 + 1}


def test_each_norm_is_a_kernel(minimax: EngineBlocks) -> None:
    def moved(plan: ParallelPlan) -> Counter[float]:
        kernels = forward_kernels(minimax, STEP, plan)
        return Counter({one.bytes_moved: count for one, count in kernels if one.kind is KernelKind.VECTOR})

    each = 2 * 16 * (48 + 8) * 128 / 2 * 2  # read and written, half of the numbers each, two bytes
    assert moved(ParallelPlan())[each] == 2 * 62
    assert moved(ParallelPlan(tp=4))[each / 4] == 2 * 62


def test_a_model_without_such_norms_has_none() -> None:
    assert blocks_of("qwen2-0.5b").norms == ()
