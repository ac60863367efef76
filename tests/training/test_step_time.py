from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.training.model_flops import (
    FROZEN,
    HARDWARE,
    NECESSARY,
    SIX_N,
    SIX_W_WHOLE,
    conventions,
    hardware_flops,
    necessary_flops,
)
from llm_perf_opt.training.rank_memory import stage_numbers
from llm_perf_opt.training.step_communication import step_collectives
from llm_perf_opt.training.step_kernels import Phase, micro_batch
from llm_perf_opt.training.step_time import StepClock, step_time
from llm_perf_opt.training.training_run import Shard, TrainingMethod, TrainingPlan
from tests.training.shapes import HEADS, HIDDEN, LAYER_MATRICES, LAYERS, VOCABULARY, WIDTH, run, shape

MATMULS = LAYER_MATRICES + HIDDEN * VOCABULARY


def clock() -> StepClock:
    """The data sheet alone: the same figures with and without measured tables."""
    return StepClock(source_of(parse_cluster("8x h100-sxm"), "eager"))


def test_flops_by_convention_are_those_worked_out_by_hand() -> None:
    """Causal attention of 16 tokens: 136 pairs for each head and layer, 2 x 4 multiply-adds each."""
    rows = conventions(shape(), run(recompute="full"))
    whole, causal = (2 * LAYERS * HEADS * pairs * 2 * WIDTH / 16 for pairs in (256, 136))
    assert rows[SIX_N].flops_per_token == 6 * shape().parameters
    assert rows[SIX_W_WHOLE].flops_per_token == 6 * MATMULS + 3 * whole
    assert rows[NECESSARY].flops_per_token == 6 * MATMULS + 3 * causal
    assert rows[HARDWARE].flops_per_token == 6 * MATMULS + 3 * causal + 2 * LAYER_MATRICES + causal
    frozen = run(method=TrainingMethod(kind="lora", rank=2))
    assert conventions(shape(), frozen)[FROZEN].flops_per_token == necessary_flops(shape(), frozen)


def test_the_kernels_of_a_micro_batch_have_the_matmul_flops_of_the_convention() -> None:
    """Two sources agree: shapes of kernels, and parameters times tokens."""
    batch = micro_batch(shape(), run())
    of_kernels = sum(
        kernel.flops * count
        for kernels in (batch.forward, batch.backward, batch.head)
        for kernel, count in kernels.items()
    )
    assert of_kernels == 6 * MATMULS * 16


def test_ranks_of_a_plan_share_the_flops() -> None:
    def flops(plan: TrainingPlan) -> float:
        batch = micro_batch(shape(), run(plan))
        return sum(kernel.flops * count for kernel, count in batch.forward.items())

    alone = flops(TrainingPlan())
    assert flops(TrainingPlan(gpus=2, tp=2)) == alone / 2
    assert flops(TrainingPlan(gpus=2, pp=2)) == alone / 2
    assert flops(TrainingPlan(gpus=2, cp=2)) == alone / 2


def test_no_step_is_faster_than_the_necessary_flops_at_the_peak() -> None:
    for sequence, micro in ((16, 1), (4096, 8)):
        asked = run(sequence=sequence, micro_batch=micro, sequences=micro)
        least = necessary_flops(shape(), asked) * asked.step_tokens / 989.4e12
        assert step_time(shape(), asked, clock()).band.low >= least * 0.999


def test_recomputation_costs_a_forward_and_nothing_is_faster_for_it() -> None:
    asked = run(sequence=4096, micro_batch=4, sequences=4)
    plain, again = (step_time(shape(), replace(asked, recompute=kind), clock()) for kind in ("none", "full"))
    assert again.phases[Phase.RECOMPUTE].expected == pytest.approx(again.phases[Phase.FORWARD].expected)
    assert plain.phases[Phase.RECOMPUTE].expected == 0
    assert again.seconds > plain.seconds
    assert hardware_flops(shape(), replace(asked, recompute="full")) > hardware_flops(shape(), asked)


def test_the_phases_add_up_to_the_step() -> None:
    time = step_time(shape(), run(TrainingPlan(gpus=8, shard=Shard.WEIGHTS, degree=8), sequences=8), clock())
    for pick in ("low", "expected", "high"):
        assert sum(getattr(band, pick) for band in time.phases.values()) == pytest.approx(getattr(time.band, pick))


def test_a_bubble_is_the_stages_over_the_micro_batches() -> None:
    """Four stages and eight micro batches: 3/8 of the busy time; two chunks on a stage halve it."""
    plans = (TrainingPlan(gpus=4, pp=4), TrainingPlan(gpus=4, pp=4, chunks=2))
    shares = []
    for plan in plans:
        phases = step_time(shape(), run(plan, sequences=8, sequence=4096), clock()).phases
        apart = (Phase.BUBBLE, Phase.OPTIMIZER, Phase.LAUNCHES, Phase.HOST)
        busy = sum(band.expected or 0.0 for phase, band in phases.items() if phase not in apart)
        shares.append((phases[Phase.BUBBLE].expected or 0.0) / busy)
    assert shares == pytest.approx([3 / 8, 3 / 16])


def test_sharded_layers_are_gathered_twice_tables_once_and_gradients_scattered_once() -> None:
    asked = run(TrainingPlan(gpus=8, shard=Shard.WEIGHTS, degree=8), sequences=16)
    found = list(step_collectives(shape(), asked, stage_numbers(shape(), asked, 0)))
    sent: Counter[CollectiveKind] = Counter()
    for each in found:
        sent[each.collective.kind] += round(each.collective.payload_bytes * each.count)
    tables = shape().embedding_parameters + shape().head_parameters
    layers = shape().parameters - tables
    assert sent[CollectiveKind.ALL_GATHER] == 2 * 2 * (2 * layers + tables)  # two micro batches, bf16
    assert sent[CollectiveKind.REDUCE_SCATTER] == 2 * 2 * shape().parameters


def test_one_gpu_has_no_collectives() -> None:
    assert list(step_collectives(shape(), run(), stage_numbers(shape(), run(), 0))) == []


def test_weights_of_the_host_are_copied_for_every_pass() -> None:
    plan = TrainingPlan(gpus=2, shard=Shard.WEIGHTS, degree=2)
    asked = run(plan, sequences=4, offloads=True, cluster=parse_cluster("2x h100-sxm"))
    copied = 4 * shape().parameters / 2 * 2 * 2  # half of the fp32 weights, two micro batches, two passes
    assert step_time(shape(), asked, clock()).phases[Phase.HOST].expected == pytest.approx(copied / 12e9)


def test_a_kernel_without_a_time_is_refused_and_never_free(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StepClock(source_of(parse_cluster("h100-sxm").device, "eager", None))
    monkeypatch.setattr(StepClock, "each", lambda self, kernel: None)
    with pytest.raises(PerfOptError, match="No time is known for"):
        step_time(shape(), run(), clock)
