"""Figures of a step: hand-worked FLOPs, memory by kind, and the graphs of its phases."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from llm_perf_opt.core.recorded_step import BACKWARD, FORWARD, OPTIMIZER, PHASES
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.models.huggingface.training import prepared_model, run_step, start_step
from llm_perf_opt.training.step_memory import memory_of, peaks
from llm_perf_opt.training.step_record import MemoryKind, TrainingStep
from llm_perf_opt.training.training_step import step_of
from tests.training.steps import HIDDEN, INNER, LAYERS, VOCABULARY, llama_step, tiny_llama

pytest.importorskip("transformers", minversion="5.0", reason="the tiny decoder is of transformers 5")

TOKENS = 32
LINEAR = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * (HIDDEN // 2) + 3 * HIDDEN * INNER  # query, output; key, value; MLP
FORWARD_FLOPS = 2 * TOKENS * (LAYERS * LINEAR + HIDDEN * VOCABULARY)
ATTENTION_FLOPS = LAYERS * 2 * (2 * 4) * 16 * 16 * (8 + 8)  # 2 x 4 heads, 16 x 16 pairs, 8 wide
WEIGHTS = LAYERS * (LINEAR + 2 * HIDDEN) + 2 * HIDDEN * VOCABULARY + HIDDEN


def figures(**options: object) -> TrainingStep:
    step, setup = llama_step(**options)
    return step_of("tiny", step, setup)


def test_a_backward_is_twice_the_matmuls_of_the_forward_and_two_and_a_half_times_its_attention() -> None:
    step = figures()
    assert step.phase(FORWARD).flops == FORWARD_FLOPS + ATTENTION_FLOPS
    assert step.phase(BACKWARD).flops == 2 * FORWARD_FLOPS + ATTENTION_FLOPS * 5 // 2
    assert step.phase(OPTIMIZER).flops == step.recomputed_flops == 0


def test_matmuls_and_attention_add_up_to_the_flops_of_a_phase() -> None:
    for phase in figures(dtype="bfloat16", device="cuda").phases:
        shapes = sum(2 * group.m * group.n * group.k * group.batch * group.count for group in phase.matmuls)
        assert shapes == sum(group.flops for group in phase.matmuls)
        assert shapes + sum(group.flops for group in phase.attention) == phase.flops
        assert phase.unpriced == {}


def test_a_causal_kernel_may_skip_almost_half_of_its_pairs() -> None:
    (group,) = figures(dtype="bfloat16", device="cuda").phase(FORWARD).attention
    assert (group.sequences, group.heads, group.key_heads, group.queries, group.width) == (2, 4, 2, 16, 8)
    assert group.is_causal and group.flops == ATTENTION_FLOPS
    assert group.skippable_flops == group.count * (ATTENTION_FLOPS // LAYERS * 15 // 32)


def test_parameters_and_bytes_are_those_of_the_model() -> None:
    step = figures()
    assert step.parameters == step.trainable_parameters == step.active_parameters == WEIGHTS
    assert (step.layers, step.layer_parameters) == (LAYERS, LINEAR + 2 * HIDDEN)
    assert step.embedding_parameters == HIDDEN * VOCABULARY
    assert step.gradient_bytes == 4 * WEIGHTS
    assert step.optimizer_bytes == 8 * WEIGHTS + 4 * (9 * LAYERS + 3)  # and a counter for each of the tensors
    assert step.logits_bytes == TOKENS * VOCABULARY * 4
    assert step.layer_input_bytes == TOKENS * HIDDEN * 4


def test_recomputation_keeps_the_input_of_a_layer_and_brings_one_layer_back() -> None:
    kept, again = figures(), figures(recompute="full")
    assert again.layer_saved_bytes == again.layer_input_bytes
    assert again.layer_saved_bytes < again.layer_recomputed_bytes <= kept.layer_saved_bytes
    assert kept.layer_recomputed_bytes == kept.recomputed_flops == 0
    last = 2 * TOKENS * LAYERS * HIDDEN * INNER  # torch stops before it
    head = 2 * TOKENS * HIDDEN * VOCABULARY
    assert again.recomputed_flops == FORWARD_FLOPS + ATTENTION_FLOPS - head - last


def test_micro_batches_after_the_second_are_counted_and_not_run() -> None:
    """Three that ran, and two that ran with the second counted twice."""
    ran, setup = llama_step(accumulation=3)
    two, _ = llama_step(accumulation=2)
    whole, counted = step_of("tiny", ran, setup), step_of("tiny", two, setup)
    assert counted.phases == whole.phases
    assert counted.peak.peak_bytes == whole.peak.peak_bytes
    assert whole.phase(FORWARD).flops == 3 * (FORWARD_FLOPS + ATTENTION_FLOPS)


@pytest.mark.parametrize("options", [{}, {"recompute": "full"}, {"accumulation": 2}, {"optimizer": "adamw-fused"}])
def test_kinds_add_up_to_what_is_alive_and_the_peak_is_the_highest(options: dict[str, object]) -> None:
    step, _ = llama_step(**options)
    memory = memory_of(step)
    storages = step.graph.storages
    assert storages is not None
    for op in (0, step.op_count // 2, step.op_count - 1):
        lives = zip(storages.bytes, storages.born_op, storages.freed_op, strict=True)
        assert memory.total[op] == sum(size for size, born, freed in lives if born <= op < freed)
        assert memory.total[op] == sum(memory.at(op).values())
    highest = peaks(memory)
    assert set(highest) == set(PHASES)
    assert max(moment.peak_bytes for moment in highest.values()) == max(memory.total)
    for moment in highest.values():
        assert sum(tensor.bytes for tensor in moment.tensors) == moment.peak_bytes
        by_kind = Counter[MemoryKind]()
        for tensor in moment.tensors:
            by_kind[tensor.kind] += tensor.bytes
        assert by_kind == {kind: size for kind, size in moment.by_kind.items() if size}


def test_the_curve_is_bounded_and_has_the_peak() -> None:
    step = figures()
    assert len(step.memory) <= 2 * 400
    assert max(point.bytes for point in step.memory) == step.peak.peak_bytes


def test_gradients_and_states_are_what_torchs_own_tracker_says() -> None:
    """`MemTracker` follows a real step with rules of its own; it has no kind for what a backward will need."""
    from torch.distributed._tools.mem_tracker import MemTracker

    _, setup = llama_step()
    model = prepared_model(tiny_llama(), setup)
    start = start_step(model, setup)
    tracker = MemTracker()
    tracker.track_external(model, start.optimizer, *start.inputs.values())
    with tracker:
        run_step(model, start, setup)
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    ours = figures().peak
    assert theirs["Total"] == pytest.approx(ours.peak_bytes, rel=0.01)
    named = {str(getattr(kind, "value", kind)): size for kind, size in theirs.items()}
    assert named["Parameter"] + named["Buffer"] == ours.by_kind[MemoryKind.WEIGHTS]
    assert named["Gradient"] == ours.by_kind[MemoryKind.GRADIENTS]


@pytest.mark.parametrize("options", [{}, {"recompute": "full"}, {"accumulation": 2}])
def test_the_graphs_of_the_phases_are_sound_and_hold_every_op_once(options: dict[str, object]) -> None:
    step, setup = llama_step(**options)
    whole = step_of("tiny", step, setup)
    assert [graph.phase for graph in whole.graphs] == list(PHASES)
    assert [problem for graph in whole.graphs for problem in graph.problems()] == []
    assert sum(graph.coverage.ops for graph in whole.graphs if graph.coverage) == step.op_count
    for graph, phase in zip(whole.graphs, whole.phases, strict=True):
        assert sum(stage.flops or 0 for stage in counted(graph)) == phase.flops
