from __future__ import annotations

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.training.training_run import (
    OPTIMIZERS,
    WEIGHTS,
    Shard,
    TrainingPlan,
    read_method,
    read_plan,
    state_bytes,
)


def test_a_method_is_read_with_its_rank() -> None:
    assert [(m.kind, m.rank) for m in map(read_method, ("full", "lora:8", "qlora"))] == [
        ("full", 0),
        ("lora", 8),
        ("qlora", 16),
    ]


@pytest.mark.parametrize("text", ["lora:0", "full:8", "dora", "lora:", "lora:8:9", ""])
def test_what_is_no_method_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no training method"):
        read_method(text)


@pytest.mark.parametrize(
    ("text", "gpus", "shard", "degree", "data"),
    [
        ("fsdp8", 8, Shard.WEIGHTS, 8, 8),
        ("fsdp", 8, Shard.WEIGHTS, 8, 8),
        ("fsdp4", 16, Shard.WEIGHTS, 4, 16),  # four groups of copies
        ("tp2,fsdp4", 8, Shard.WEIGHTS, 4, 4),
        ("ddp", 4, Shard.NOTHING, 1, 4),
        ("pp4,tp2,zero1", 32, Shard.STATES, 4, 4),
        ("zero3", 2, Shard.WEIGHTS, 2, 2),
    ],
)
def test_a_plan_is_read(text: str, gpus: int, shard: Shard, degree: int, data: int) -> None:
    plan = read_plan(text, gpus)
    assert (plan.shard, plan.degree, plan.data_ranks, plan.gpus) == (shard, degree, data, gpus)


@pytest.mark.parametrize("text", ["fsdp8", "tp2,pp2,zero1", "tp2,fsdp4", "ddp8", "cp2,ep8,fsdp4", "zero2"])
def test_a_plan_that_was_printed_is_read_back(text: str) -> None:
    plan = read_plan(text, 8)
    assert read_plan(str(plan), 8) == plan


@pytest.mark.parametrize(("text", "gpus"), [("fsdp3", 8), ("tp3", 8), ("tp", 8), ("ep5,fsdp8", 8), ("xx4", 8), ("", 1)])
def test_a_plan_that_does_not_divide_the_gpus_is_refused(text: str, gpus: int) -> None:
    with pytest.raises(UsageError):
        read_plan(text, gpus)


def test_states_are_those_that_torch_and_bitsandbytes_allocate() -> None:
    def total(optimizer: str, weights: str) -> float:
        states = state_bytes(optimizer, weights)
        return states.weights + states.gradients + states.states

    assert total("adamw", "mixed") == 16  # fp32 weight, gradient and two moments
    assert total("adamw", "bf16") == 8
    assert total("adamw", "master") == 18  # bf16 weight, fp32 gradient, copy and two moments
    assert total("sgd", "bf16") == 4
    assert state_bytes("adamw8bit", "bf16").states == pytest.approx(2.03, abs=0.01)
    assert all(state_bytes(name, weights).states >= 0 for name in OPTIMIZERS for weights in WEIGHTS)


def test_experts_are_shared_by_the_ranks_that_expert_parallel_leaves() -> None:
    plan = TrainingPlan(gpus=64, ep=8, shard=Shard.WEIGHTS, degree=64)
    assert (plan.shard_ranks, plan.expert_shard_ranks) == (64, 8)
