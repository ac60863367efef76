"""The collectives of one optimizer step on one rank, and how much of them other work hides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_perf_opt.core.collectives import Collective, CollectiveKind, GroupRanks
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import QUANTISED_BYTES, StageNumbers
from llm_perf_opt.training.training_run import FULL, QLORA, Shard, TrainingPlan, TrainingRun

_TWO = 2  # bytes of bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollective:
    """Collectives alike: `count` in an optimizer step. `hidden_by` names the work that may run meanwhile."""

    what: str
    axis: str  # tp, cp, ep, pp, data
    collective: Collective
    count: float
    hidden_by: str  # nothing, layers, backward


def _ranks(size: int, stride: int) -> GroupRanks:
    return GroupRanks(size, 0, (size - 1) * stride, stride)


def axis_group(plan: TrainingPlan, axis: str) -> GroupRanks:
    """The ranks of an axis, tensor parallel innermost, then context, data and pipeline."""
    inner = {"tp": 1, "cp": plan.tp, "data": plan.tp * plan.cp, "pp": plan.tp * plan.cp * plan.data_ranks}
    if axis == "shard":
        return _ranks(plan.degree * plan.cp, plan.tp)
    if axis == "copies":
        return _ranks(plan.data_ranks // plan.degree, plan.tp * plan.cp * plan.degree)
    if axis == "ep":
        return _ranks(plan.ep, 1)
    sizes = {"tp": plan.tp, "cp": plan.cp, "data": plan.data_ranks * plan.cp, "pp": plan.pp}
    stride = plan.tp if axis == "data" else inner[axis]
    return _ranks(sizes[axis], stride)


def step_collectives(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> Iterator[StepCollective]:
    """All of them; an axis of one rank has none."""
    yield from _data_parallel(shape, run, numbers)
    plan, micro = run.plan, run.micro_batches
    layers = shape.layers / plan.pp
    passes = 3 if run.recompute == "full" else 2  # forward, backward, and the forward again
    wide = round(run.rank_tokens * shape.hidden * _TWO)
    if plan.tp > 1:
        group = axis_group(plan, "tp")
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            yield _of("activations between tensor-parallel ranks", "tp", kind, wide, group, 2 * layers * passes * micro)
    if plan.cp > 1:
        keys = sum(a.layers * shape.blocks.key_heads(a) * (a.qk_width + a.v_width) for a in shape.blocks.attentions)
        each = round(run.micro_batch * run.sequence * keys / max(1, shape.layers) * _TWO / plan.tp)
        kind, group = CollectiveKind.ALL_GATHER, axis_group(plan, "cp")
        yield _of("keys and values", "cp", kind, each, group, layers * (passes + 1) * micro, "layers")
    if plan.ep > 1:
        group = axis_group(plan, "ep")
        for block in shape.blocks.experts:
            each = round(run.rank_tokens / plan.tp * block.chosen * block.hidden * _TWO)
            count = 2 * block.layers / plan.pp * passes * micro
            yield _of("tokens to experts and back", "ep", CollectiveKind.ALL_TO_ALL, each, group, count)
    if plan.pp > 1:
        each = round(wide / plan.tp)
        yield _of(
            "activations between stages",
            "pp",
            CollectiveKind.SEND,
            each,
            axis_group(plan, "pp"),
            2 * micro * plan.chunks,
            "layers",
        )


def _data_parallel(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> Iterator[StepCollective]:
    plan, micro = run.plan, run.micro_batches
    if plan.data_ranks * plan.cp == 1:
        return
    is_full = run.method.kind == FULL
    dense = numbers.own - numbers.experts
    trained = dense if is_full else numbers.adapters
    parts = [("", dense, trained, "data")]
    copies = plan.tp * plan.cp * plan.data_ranks // plan.ep
    if numbers.experts and copies > 1:
        parts.append((" of experts", numbers.experts, numbers.experts if is_full else 0.0, "experts"))
    layers = max(1.0, shape.layers / plan.pp)
    for name, stored, reduced, axis in parts:
        group = _ranks(copies, plan.ep) if axis == "experts" else axis_group(plan, "data")
        if plan.shard is Shard.WEIGHTS and axis == "data":
            group = axis_group(plan, "shard")
        if group.size == 1:
            continue
        if plan.shard is Shard.WEIGHTS:
            if axis == "data":
                yield from _tables(run, numbers, group)
                stored -= numbers.tables
                reduced -= numbers.tables if is_full else 0.0
            each = round(stored / layers * (QUANTISED_BYTES if run.method.kind == QLORA else _TWO))
            times = 2 if run.is_resharded else 1
            yield _of(
                f"weights{name}", "data", CollectiveKind.ALL_GATHER, each, group, layers * times * micro, "layers"
            )
            if reduced:
                each = round(reduced / layers * _TWO)
                yield _of(
                    f"gradients{name}", "data", CollectiveKind.REDUCE_SCATTER, each, group, layers * micro, "layers"
                )
            yield from _copies(run, reduced / layers, layers)
            continue
        each = round(reduced / layers * run.states.gradients)
        if plan.shard is Shard.NOTHING:
            yield _of(f"gradients{name}", "data", CollectiveKind.ALL_REDUCE, each, group, layers, "backward")
            continue
        yield _of(f"gradients{name}", "data", CollectiveKind.REDUCE_SCATTER, each, group, layers, "backward")
        each = round(reduced / layers * _TWO)
        yield _of(f"weights{name}", "data", CollectiveKind.ALL_GATHER, each, group, layers, "backward")


def _tables(run: TrainingRun, numbers: StageNumbers, group: GroupRanks) -> Iterator[StepCollective]:
    """Embedding and head: FSDP keeps what no layer holds gathered from the forward to the end of the backward."""
    each, micro = round(numbers.tables * _TWO), run.micro_batches
    if not each:
        return
    yield _of("weights of embedding and head", "data", CollectiveKind.ALL_GATHER, each, group, micro, "layers")
    if run.method.kind == FULL:
        what = "gradients of embedding and head"
        yield _of(what, "data", CollectiveKind.REDUCE_SCATTER, each, group, micro, "layers")


def _copies(run: TrainingRun, numbers: float, layers: float) -> Iterator[StepCollective]:
    """Shards of gradients between the groups that have copies of the weights: once in a step."""
    if run.plan.data_ranks > run.plan.degree and numbers:
        each = round(numbers / run.plan.shard_ranks * _TWO)
        group = axis_group(run.plan, "copies")
        yield _of("gradients between copies", "data", CollectiveKind.ALL_REDUCE, each, group, layers, "backward")


def _of(
    what: str,
    axis: str,
    kind: CollectiveKind,
    payload: int,
    group: GroupRanks,
    count: float,
    hidden_by: str = "nothing",
) -> StepCollective:
    collective = Collective(kind=kind, payload_bytes=max(1, payload), group=group, axis=axis)
    return StepCollective(what=what, axis=axis, collective=collective, count=count, hidden_by=hidden_by)
