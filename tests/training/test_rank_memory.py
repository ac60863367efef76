from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.training.rank_memory import HeldKind, adapter_numbers, layer_activations, rank_memory
from llm_perf_opt.training.training_run import Shard, StateBytes, TracedSizes, TrainingMethod, TrainingPlan
from tests.training.shapes import HIDDEN, INNER, LAYERS, VOCABULARY, run, shape

TOKENS = 16


def test_weights_gradients_and_states_are_counted_for_every_number() -> None:
    memory = rank_memory(shape(), run(sequences=2))
    assert memory.by_kind[HeldKind.WEIGHTS] == 4 * shape().parameters
    assert memory.by_kind[HeldKind.GRADIENTS] == 4 * shape().parameters
    assert memory.by_kind[HeldKind.STATES] == 8 * shape().parameters


def test_a_layer_saves_what_its_ops_need_in_the_backward() -> None:
    """By hand, for each token in bf16: query, key and value 3h, attention h, gate and up 2i, their product i, the
    activation function i; two norms keep their input and result, and fp32 copies."""
    each = 2 * (3 * HIDDEN + HIDDEN + 2 * INNER + INNER + INNER) + HIDDEN * (4 * 2 + 2 * 4)
    assert layer_activations(shape(), run()).saved == TOKENS * each
    assert layer_activations(shape(), run(recompute="full")).kept == TOKENS * 2 * HIDDEN


def test_activations_are_affine_in_the_micro_batch() -> None:
    single, double, fourfold = (layer_activations(shape(), run(micro_batch=size)).saved for size in (1, 2, 4))
    assert (double, fourfold) == (2 * single, 4 * single)


def test_a_traced_step_replaces_the_rules_of_eager_code_alone() -> None:
    traced = TracedSizes(saved=1000.0, kept=10.0)
    assert layer_activations(shape(), run(traced=traced)).saved == 1000 * TOKENS
    assert layer_activations(shape(), run(traced=traced, recompute="full")).kept == 10 * TOKENS
    compiled = layer_activations(shape(), run(compiled=True))
    assert layer_activations(shape(), run(traced=traced, compiled=True)) == compiled


@pytest.mark.parametrize(
    ("shard", "kinds"),
    [
        (Shard.NOTHING, ()),
        (Shard.STATES, (HeldKind.STATES,)),
        (Shard.GRADIENTS, (HeldKind.STATES, HeldKind.GRADIENTS)),
        (Shard.WEIGHTS, (HeldKind.STATES, HeldKind.GRADIENTS, HeldKind.WEIGHTS)),
    ],
)
def test_ranks_share_what_the_plan_says_and_no_more(shard: Shard, kinds: tuple[HeldKind, ...]) -> None:
    plan = TrainingPlan(gpus=8, shard=shard, degree=1 if shard is Shard.NOTHING else 8)
    alone, shared = (rank_memory(shape(), run(each, sequences=64)).by_kind for each in (TrainingPlan(), plan))
    for kind in (HeldKind.WEIGHTS, HeldKind.GRADIENTS, HeldKind.STATES):
        assert shared[kind] == alone[kind] / (8 if kind in kinds else 1)


def test_logits_take_their_bytes_unless_the_loss_is_fused() -> None:
    long = run(sequence=4096, recompute="full")
    memory = rank_memory(shape(), long)
    assert (memory.moment, memory.by_kind[HeldKind.LOGITS]) == ("loss", 4096 * VOCABULARY * 14)
    assert rank_memory(shape(), replace(long, loss="fused")).by_kind[HeldKind.LOGITS] == 0


def test_adapters_are_two_thin_matrices_for_each_linear_layer() -> None:
    """q, k, v and o are h x h, gate and up h x i, down i x h."""
    rank = 2
    by_hand = LAYERS * rank * (4 * (HIDDEN + HIDDEN) + 2 * (HIDDEN + INNER) + (INNER + HIDDEN))
    method = TrainingMethod(kind="lora", rank=rank)
    assert adapter_numbers(shape(), run(method=method)) == by_hand
    memory = rank_memory(shape(), run(method=method, states=StateBytes(weights=4, gradients=4, states=8)))
    assert memory.by_kind[HeldKind.WEIGHTS] == 2 * shape().parameters + 4 * by_hand


def test_four_bits_shrink_the_layers_and_not_the_tables() -> None:
    method = TrainingMethod(kind="qlora", rank=2)
    memory = rank_memory(shape(), run(method=method))
    tables = 2 * VOCABULARY * HIDDEN
    packed = 0.516 * (shape().parameters - tables) + 2 * tables
    assert memory.by_kind[HeldKind.WEIGHTS] == pytest.approx(packed + 4 * adapter_numbers(shape(), run(method=method)))


def test_the_first_stage_of_a_pipeline_holds_more_micro_batches() -> None:
    plan = TrainingPlan(gpus=2, pp=2)
    memory = rank_memory(shape(), run(plan, sequences=8, sequence=4096, loss="fused"))
    assert memory.stage == 0
    saved = layer_activations(shape(), run(sequence=4096)).saved
    assert memory.by_kind[HeldKind.ACTIVATIONS] == 2 * saved  # one layer, two micro batches


def test_what_is_taken_has_the_allowances_apart() -> None:
    memory = rank_memory(shape(), run())
    assert memory.needed == sum(memory.by_kind.values())
    assert memory.taken == memory.needed + memory.reserved_allowance + memory.context_bytes
    assert memory.reserved_allowance > 0
