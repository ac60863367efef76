"""One weightless rank of a parallel training step communicates and holds what a real process does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("transformers", minversion="5.20", reason="transformers spreads models over meshes from 5.20 on")

from benchmarks.training.parallel_steps import (
    BATCH,
    CASES,
    TINY,
    TOKENS,
    ParallelStep,
    data_parallel,
    differences,
    fully_sharded,
    record_rank,
    run_real_ranks,
    seen_of,
)
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind

pytestmark = pytest.mark.usefixtures("one_thread")

# No benchmark has this model: Qwen3 with norms of its heads, other sizes, and a tied embedding.
QWEN = {
    **TINY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "tie_word_embeddings": True,
}


@pytest.mark.slow
def test_every_rank_of_every_case_equals_the_real_process() -> None:
    """In one test: starting the processes takes longer than the steps."""
    other = [
        ParallelStep(name="Qwen3, FSDP2", model="Qwen3", fields=QWEN, spread=fully_sharded, recompute=True),
        ParallelStep(name="Qwen3, DDP", model="Qwen3", fields=QWEN, spread=data_parallel, micro_batches=2),
    ]
    cases = [*CASES, *other]
    real = run_real_ranks(cases)
    unlike = {}
    for case in cases:
        for rank, process in enumerate(real[case.name]):
            assert process.sent, "a plan without a collective shows nothing"
            if differing := differences(seen_of(record_rank(case, rank, process.routing)), process):
                unlike[case.name, rank] = differing
    assert unlike == {}


def sums(case: ParallelStep) -> dict[CollectiveKind | None, int]:
    """Kind of collective -> bytes of all of them on the first rank."""
    found: dict[CollectiveKind | None, int] = {}
    for op, size_bytes, _ in seen_of(record_rank(case, 0)).sent:
        kind = collective_kind(op)
        found[kind] = found.get(kind, 0) + size_bytes
    return found


def test_fully_sharded_ranks_gather_layers_twice_and_the_rest_once() -> None:
    """By hand: 3 layers of 46,208 bytes each as bfloat16 halves; the root's weights stay until its backward."""
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64
    root = 2 * 256 * 64 + 64
    case = next(case for case in CASES if case.name == "FSDP2")
    assert sums(case) == {
        CollectiveKind.ALL_GATHER: 4 * (2 * 3 * layer + root),
        CollectiveKind.REDUCE_SCATTER: 4 * (3 * layer + root),
    }
    halves = replace(case, spread=partial(fully_sharded, is_mixed=True))
    assert sums(halves) == {
        CollectiveKind.ALL_GATHER: 2 * (2 * 3 * layer + root),
        CollectiveKind.REDUCE_SCATTER: 4 * (3 * layer + root),
    }


def test_data_parallel_ranks_reduce_each_gradient_once() -> None:
    numbers = 3 * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 176 + 2 * 64) + 2 * 256 * 64 + 64
    case = next(case for case in CASES if case.name == "DDP")
    assert sums(case)[CollectiveKind.ALL_REDUCE] == 4 * numbers


def test_tensor_parallel_ranks_reduce_activations_in_both_directions() -> None:
    case = next(case for case in CASES if case.name == "tensor parallel")
    wide = 4 * BATCH * TOKENS * 64
    reduced = [size for op, size, _ in seen_of(record_rank(case, 0)).sent if "all" in op and "reduce" in op]
    assert reduced.count(wide) >= 2 * 2 * 3  # attention and MLP of each layer, forward and backward
