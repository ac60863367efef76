"""The kernels of one rank: their work adds up to that of the model, and collectives follow from the plan."""

from dataclasses import replace

import pytest

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, MatmulShape
from llm_perf_opt.ops.op import KernelKind
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks
from llm_perf_opt.timing.step.engine_step import Forward, forward_kernels
from tests.timing.step.test_engine_blocks import blocks_of

STEP = Forward(sequences=16, queries=1, keys=1024)


@pytest.fixture(scope="module")
def routed() -> EngineBlocks:
    return blocks_of("qwen3-30b-a3b")


def macs(blocks: EngineBlocks, forward: Forward, plan: ParallelPlan, *, leaving: int = 0) -> int:
    """Multiply-adds of the matmuls of one rank, without those that have `leaving` columns."""
    return sum(
        kernel.flops // 2 * count
        for kernel, count in forward_kernels(blocks, forward, plan)
        if isinstance(kernel.shape, MatmulShape) and kernel.shape.columns != leaving
    )


def test_matmuls_of_one_device_are_those_of_the_model(routed: EngineBlocks) -> None:
    matmuls = sum(one.columns * one.depth * one.layers for one in routed.matmuls)
    assert macs(routed, STEP, ParallelPlan()) == 16 * matmuls


def test_the_head_runs_on_last_tokens_alone(routed: EngineBlocks) -> None:
    prompt = Forward(sequences=2, queries=100, keys=100)
    (head,) = [one for one in routed.matmuls if one.part is DecoderPart.HEAD]
    kernels = [kernel for kernel, _ in forward_kernels(routed, prompt, ParallelPlan())]
    shapes = [kernel.shape for kernel in kernels if isinstance(kernel.shape, MatmulShape)]
    assert {shape.rows for shape in shapes if shape.columns == head.columns} == {2}
    assert {shape.rows for shape in shapes if shape.columns != head.columns} == {200}


def test_four_ranks_do_all_of_it_once(routed: EngineBlocks) -> None:
    router = 128
    whole, part = (macs(routed, STEP, ParallelPlan(tp=ranks), leaving=router) for ranks in (1, 4))
    assert 4 * part == whole


def test_attention_and_experts_of_a_rank(routed: EngineBlocks) -> None:
    shapes = [kernel.shape for kernel, _ in forward_kernels(routed, STEP, ParallelPlan(tp=8))]
    (attention,) = {shape for shape in shapes if isinstance(shape, AttentionShape)}
    assert (attention.sequences, attention.queries, attention.keys) == (16, 1, 1024)
    assert (attention.heads, attention.key_heads, attention.width) == (4, 1, 128)
    (experts,) = {shape for shape in shapes if isinstance(shape, ExpertsShape)}
    assert (experts.tokens, experts.tensor_ranks, experts.expert_ranks) == (16, 8, 1)


def test_collectives_follow_from_the_plan(routed: EngineBlocks) -> None:
    def collectives(plan: ParallelPlan) -> dict[CollectiveKind, tuple[int, int]]:
        found = [(kernel.collective, count) for kernel, count in forward_kernels(routed, STEP, plan)]
        return {one.kind: (one.payload_bytes, count) for one, count in found if one is not None}

    row = 2048 * 2
    assert collectives(ParallelPlan()) == {}
    assert collectives(ParallelPlan(tp=4)) == {
        CollectiveKind.ALL_REDUCE: (16 * row, 2 * 48 + 1),  # the parts of each layer, and the embedding
        CollectiveKind.ALL_GATHER: (16 * 151936 * 2, 1),  # the logits
    }
    assert collectives(ParallelPlan(attention_dp=4, ep=4)) == {
        CollectiveKind.ALL_GATHER: (16 * row, 48),
        CollectiveKind.REDUCE_SCATTER: (16 * row, 48),
    }


def test_only_recurrent_layers_carry_a_state(routed: EngineBlocks) -> None:
    """Layers whose attention is timed apart are not taken for recurrent ones."""
    assert routed.states is None
    bare = replace(routed, attentions=(), norms=())
    kernels = forward_kernels(bare, STEP, ParallelPlan())
    vectors = [(kernel, count) for kernel, count in kernels if kernel.kind is KernelKind.VECTOR]
    assert all(kernel.bytes_moved > 0 for kernel, _ in vectors)
    assert sum(count for _, count in vectors) == (2 * 48 + 1) + 2 * 48, "norms, and two kernels that choose experts"


def test_vector_kernels_move_every_token(routed: EngineBlocks) -> None:
    def moved(sequences: int) -> float:
        step = Forward(sequences=sequences, queries=1, keys=64)
        kernels = forward_kernels(routed, step, ParallelPlan())
        return sum(one.bytes_moved * count for one, count in kernels if one.kind is KernelKind.VECTOR)

    assert moved(32) == pytest.approx(2 * moved(16))


@pytest.mark.parametrize(("ranks", "inner"), [(1, 2880), (2, 23 * 64), (8, 6 * 64)])
def test_experts_in_mxfp4_are_padded_to_whole_steps_of_their_kernel(
    routed: EngineBlocks, ranks: int, inner: int
) -> None:
    """The experts of gpt-oss: 2,880 numbers over two ranks are 1,440, which take 23 steps of 64."""
    (block,) = routed.experts
    padded = replace(block, hidden=2880, inner=2880, experts=32, chosen=4, weight_format="mxfp4")
    kernels = forward_kernels(replace(routed, experts=(padded,)), STEP, ParallelPlan(tp=ranks))
    (experts,) = [kernel for kernel, _ in kernels if isinstance(kernel.shape, ExpertsShape)]
    assert isinstance(experts.shape, ExpertsShape)
    assert (experts.shape.inner, experts.shape.inner_of_rank) == (2880, inner)
    assert experts.flops == 2 * 16 * 4 * 3 * 2880 * inner
