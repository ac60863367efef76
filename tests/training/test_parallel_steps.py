"""One weightless rank of a parallel training step communicates and holds what a real process does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from llm_perf_opt.api.train import shape_of
from llm_perf_opt.core.collectives import CollectiveKind, collective_kind
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import stage_numbers
from llm_perf_opt.training.step_communication import step_collectives
from llm_perf_opt.training.training_run import Shard, StateBytes, TrainingPlan
from tests.training.shapes import run

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


def sums(case: ParallelStep) -> Counter[CollectiveKind | None]:
    """Kind of collective -> bytes of all of them on the first rank."""
    seen: Counter[CollectiveKind | None] = Counter()
    for op, size_bytes, _ in seen_of(record_rank(case, 0)).sent:
        seen[collective_kind(op)] += size_bytes
    return seen


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


# ---- the planned run of `train` says what the traced step communicates


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    """The shape that `train` reads from a decode step of the model's own code."""
    transformers = pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("qwen")
    transformers.Qwen3Config(**QWEN, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    return shape_of(str(folder))


def planned(shape: ModelShape, plan: TrainingPlan) -> Counter[CollectiveKind]:
    states = StateBytes(weights=2, gradients=2, states=4)
    asked = run(plan, sequences=BATCH * plan.data_ranks, micro_batch=BATCH, sequence=TOKENS, states=states)
    bytes_of: Counter[CollectiveKind] = Counter()
    for each in step_collectives(shape, asked, stage_numbers(shape, asked, 0)):
        bytes_of[each.collective.kind] += round(each.collective.payload_bytes * each.count)
    return bytes_of


def qwen_step(**how: Any) -> ParallelStep:
    return ParallelStep(name="Qwen3", model="Qwen3", fields=QWEN, dtype="bfloat16", **how)


def test_a_planned_fully_sharded_step_communicates_what_the_traced_one_does(qwen: ModelShape) -> None:
    plan = planned(qwen, TrainingPlan(gpus=2, shard=Shard.WEIGHTS, degree=2))
    traced = sums(qwen_step(spread=fully_sharded))
    final_norm = 2 * 48  # counted with the layers by the plan, which gathers them once more
    assert plan[CollectiveKind.ALL_GATHER] == traced[CollectiveKind.ALL_GATHER] + final_norm
    assert plan[CollectiveKind.REDUCE_SCATTER] == traced[CollectiveKind.REDUCE_SCATTER]


def test_a_planned_data_parallel_step_reduces_what_the_traced_one_does(qwen: ModelShape) -> None:
    plan = planned(qwen, TrainingPlan(gpus=2))
    assert plan[CollectiveKind.ALL_REDUCE] == sums(qwen_step(spread=data_parallel))[CollectiveKind.ALL_REDUCE]


def test_tensor_parallel_is_planned_as_megatron_runs_it_and_transformers_reduces_more_gradients(
    qwen: ModelShape,
) -> None:
    """Two of each kind for a layer and direction by plan; transformers reduces 5 gradients of inputs in each layer."""
    wide = 2 * BATCH * TOKENS * 48
    plan = planned(qwen, TrainingPlan(gpus=2, tp=2))
    assert plan[CollectiveKind.ALL_GATHER] == plan[CollectiveKind.REDUCE_SCATTER] == wide * 2 * 2 * 4
    seen = seen_of(record_rank(qwen_step(sizes={"tp_size": 2}), 0)).sent
    reduced = [size for op, size, _ in seen if collective_kind(op) is CollectiveKind.ALL_REDUCE and size == wide]
    embedding, head = 1, 1
    assert len(reduced) == 4 * (2 + 5) + embedding + head
