"""What one rank of a training run holds, by kind, at the moment when it holds most.

Static memory follows from the plan. Saved activations follow from the matmuls of a layer: each keeps its inputs for
the backward, norms and gates of eager PyTorch keep copies of their own. They are affine in the tokens of a micro batch.

Four moments can be the fullest: the loss, where the logits are; the first layer of the backward; its last layer, when
all gradients are there; and the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from llm_perf_opt.core.units import format_bytes, format_short_count
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineExperts, EngineMatmul, Split
from llm_perf_opt.training.model_shape import ModelShape, is_gated
from llm_perf_opt.training.training_run import FULL, QLORA, Shard, TrainingRun

QUANTISED_BYTES = 0.516  # nf4 with double quantisation: 4 bits, 8 for each block of 64, 32 for 256 of those
_TWO, _FOUR = 2, 4  # bytes of bf16 and of fp32
# Of one logit: itself in bf16, its log-softmax, the gradients of the loss and of the softmax in fp32.
_LOGITS_BYTES = {"whole": 14.0, "chunked": 14.0 / 8, "fused": 0.0}
_PREFETCHED = 2  # layers with gathered weights at once


class HeldKind(StrEnum):
    """What memory of a rank is for."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    STATES = "optimizer states"
    ACTIVATIONS = "saved activations"
    GATHERED = "gathered or cast weights"
    LOGITS = "logits and loss"
    WORKING = "working memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """The fullest rank at its fullest moment, in bytes of allocated tensors; `moments` has all, in order of time.

    `made_of` says which tensors they are.
    `reserved_allowance` is what PyTorch's allocator keeps beyond them, `context_bytes` what CUDA and NCCL take.
    """

    by_kind: Mapping[HeldKind, float]
    made_of: Mapping[HeldKind, str]
    moments: Mapping[str, Mapping[HeldKind, float]]
    moment: str
    stage: int
    reserved_allowance: float
    context_bytes: float

    @property
    def needed(self) -> float:
        """Allocated tensors."""
        return sum(self.by_kind.values())

    @property
    def taken(self) -> float:
        """Of a device, as `nvidia-smi` would show it."""
        return self.needed + self.reserved_allowance + self.context_bytes


# Reserved over allocated bytes in the torchtitan and Qwen tables: docs/evidence/training-records.md.
_RESERVED_SHARE, _RESERVED_BYTES = 0.06, 512 * 2**20
_CONTEXT_BYTES = 600 * 2**20
_NCCL_BYTES = 800 * 2**20  # channels and buffers of several communicators


def rank_memory(shape: ModelShape, run: TrainingRun) -> TrainingMemory:
    """The memory of the fullest pipeline stage: the first holds most micro batches, the last holds the logits."""
    stages = {0, run.plan.pp - 1}
    return max((_of_stage(shape, run, stage) for stage in sorted(stages)), key=lambda memory: memory.needed)


def _of_stage(shape: ModelShape, run: TrainingRun, stage: int) -> TrainingMemory:
    numbers = stage_numbers(shape, run, stage)
    static = _static(shape, run, numbers)
    moments = dict(_moments(shape, run, stage, numbers, static))
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    by_kind = {kind: moments[moment].get(kind, 0.0) for kind in HeldKind}
    return TrainingMemory(
        by_kind=by_kind,
        made_of=_made_of(shape, run, stage),
        moments=moments,
        moment=moment,
        stage=stage,
        reserved_allowance=_RESERVED_SHARE * sum(by_kind.values()) + _RESERVED_BYTES,
        context_bytes=_CONTEXT_BYTES + (_NCCL_BYTES if run.plan.gpus > 1 else 0),
    )


def _moments(
    shape: ModelShape, run: TrainingRun, stage: int, numbers: StageNumbers, static: Mapping[HeldKind, float]
) -> Iterator[tuple[str, Mapping[HeldKind, float]]]:
    layer = layer_activations(shape, run)
    layers = shape.layers / run.plan.pp
    saved = layer.kept * layers * _in_flight(run, stage)
    gradients = static[HeldKind.GRADIENTS]
    held = {**static, HeldKind.GRADIENTS: gradients if run.micro_batches > 1 else 0.0}
    yield "before the forward", held
    gathered, layer_gradients = _gathered(shape, run, numbers)
    working = layer.working + layer_gradients + _dequantised(shape, run)
    if stage == run.plan.pp - 1:
        logits = run.rank_tokens / run.plan.tp * shape.vocabulary * _LOGITS_BYTES[run.loss]
        yield "loss", {**held, HeldKind.ACTIVATIONS: saved, HeldKind.LOGITS: logits, HeldKind.GATHERED: gathered}
    recomputed = layer.saved - layer.kept if run.recompute != "none" else 0.0
    first = {**held, HeldKind.ACTIVATIONS: saved, HeldKind.WORKING: working + recomputed, HeldKind.GATHERED: gathered}
    yield "first layer of the backward", first
    last = saved - layer.kept * (layers - 1)  # only one layer of this micro batch is left
    yield (
        "last layer of the backward",
        {**static, HeldKind.ACTIVATIONS: last, HeldKind.WORKING: working + recomputed, HeldKind.GATHERED: gathered},
    )
    yield "optimizer", {**static, HeldKind.WORKING: 0.0}


def _made_of(shape: ModelShape, run: TrainingRun, stage: int) -> Mapping[HeldKind, str]:
    """The tensors of each kind, in words."""
    layer, layers = layer_activations(shape, run), shape.layers / run.plan.pp
    flights = _in_flight(run, stage)
    batches = "" if flights == 1 else f" x {flights:.3g} micro batches"
    kept = "inputs of layers" if run.recompute == "full" else "inputs of the ops of layers"
    share = f"this rank's share of {format_short_count(shape.parameters)} parameters"
    return {
        HeldKind.WEIGHTS: share,
        HeldKind.GRADIENTS: "of the trained weights of this rank",
        HeldKind.STATES: f"{run.optimizer}, of the trained weights of this rank",
        HeldKind.ACTIVATIONS: f"{kept}: {layers:.3g} layers x {format_bytes(round(layer.kept))}{batches}",
        HeldKind.GATHERED: "whole weights of the layers at work, embedding and head",
        HeldKind.LOGITS: f"{run.rank_tokens / run.plan.tp:,.0f} tokens x {shape.vocabulary:,} words, their loss "
        "and gradients",
        HeldKind.WORKING: "results of the ops of one layer, and its gradients",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNumbers:
    """Numbers of the weights on one rank of a stage before data-parallel ranks share them out."""

    layers: float
    experts: float
    tables: float
    tower: float
    adapters: float
    largest_layer: float

    @property
    def own(self) -> float:
        """Of the model itself."""
        return self.layers + self.experts + self.tables + self.tower


def stage_numbers(shape: ModelShape, run: TrainingRun, stage: int) -> StageNumbers:
    """Layers are spread evenly over stages; the embedding is on the first, the head on the last."""
    plan = run.plan
    tables = shape.embedding_parameters if stage == 0 else 0
    if stage == plan.pp - 1:
        tied_copy = shape.embedding_parameters if stage > 0 else 0
        tables += shape.head_parameters or tied_copy
    layers = shape.layer_parameters / (plan.tp * plan.pp)
    experts = shape.expert_parameters / (plan.ep * plan.pp)
    return StageNumbers(
        layers=layers,
        experts=experts,
        tables=tables / plan.tp,
        tower=shape.tower_parameters if stage == 0 else 0,
        adapters=adapter_numbers(shape, run) / (plan.tp * plan.pp),
        largest_layer=(layers + experts) * plan.pp / max(1, shape.layers),
    )


def adapter_numbers(shape: ModelShape, run: TrainingRun) -> int:
    """Of all adapters: two thin matrices for each linear layer, before query, key and value are joined to one."""
    method = run.method
    if not method.has_adapters:
        return 0
    total = 0
    for matmul in shape.layer_matmuls:
        if matmul.part is DecoderPart.ROUTER or (method.on_attention_alone and matmul.part is DecoderPart.MLP):
            continue
        total += matmul.layers * method.rank * (linear_layers(shape, matmul) * matmul.depth + matmul.columns)
    if method.on_experts:
        for block in shape.blocks.experts:
            total += block.layers * block.experts * block.matrices * method.rank * (block.hidden + block.inner)
    return total


def linear_layers(shape: ModelShape, matmul: EngineMatmul) -> int:
    """How many layers of the model's own code a joined matmul stands for."""
    if matmul.key_columns:
        return 3
    return 2 if matmul.part is DecoderPart.MLP and matmul.split is Split.COLUMNS and is_gated(shape.blocks) else 1


def _static(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> dict[HeldKind, float]:
    """Weights, gradients and states, shared out as the plan says."""
    plan, states = run.plan, run.states
    shares = (
        plan.shard is Shard.WEIGHTS,
        plan.shard in (Shard.WEIGHTS, Shard.GRADIENTS),
        plan.shard is not Shard.NOTHING,
    )

    def shared(dense: float, experts: float, is_shared: bool) -> float:
        if not is_shared:
            return dense + experts
        return dense / plan.shard_ranks + experts / plan.expert_shard_ranks

    if run.offloads:
        return {HeldKind.WEIGHTS: 0.0, HeldKind.GRADIENTS: 0.0, HeldKind.STATES: 0.0}
    trained, trained_experts, frozen = _trained(run, numbers)
    factor = shape.factored_numbers / shape.parameters if states.factored else 1.0
    return {
        HeldKind.WEIGHTS: shared(
            trained * states.weights + frozen[0], trained_experts * states.weights + frozen[1], shares[0]
        ),
        HeldKind.GRADIENTS: shared(trained, trained_experts, shares[1]) * states.gradients,
        HeldKind.STATES: shared(trained, trained_experts, shares[2]) * states.states * factor,
    }


def held_bytes(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> float:
    """Weights of one rank, wherever they are."""
    return _static(shape, replace(run, offloads=False), numbers)[HeldKind.WEIGHTS]


def _trained(run: TrainingRun, numbers: StageNumbers) -> tuple[float, float, tuple[float, float]]:
    """Trained numbers outside the experts and in them, and the bytes of what is frozen, in the same two parts."""
    if run.method.kind == FULL:
        tower = 0.0 if run.trains_towers else numbers.tower
        return numbers.own - numbers.experts - tower, numbers.experts, (tower * _TWO, 0.0)
    packed = QUANTISED_BYTES if run.method.kind == QLORA else run.frozen_bytes
    dense = numbers.layers * packed + (numbers.tables + numbers.tower) * run.frozen_bytes
    tables = numbers.tables if run.method.trains_tables else 0.0
    return numbers.adapters + tables, 0.0, (dense, numbers.experts * packed)


def _gathered(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> tuple[float, float]:
    """Whole weights of the layers at work, and the gradients of one of them before they are shared out."""
    is_full = run.method.kind == FULL
    if run.plan.shard is not Shard.WEIGHTS or run.plan.shard_ranks == 1:
        is_cast = is_full and run.states.weights > _TWO and run.recompute == "none"
        return (numbers.own * _TWO if is_cast else 0.0), 0.0
    each = QUANTISED_BYTES if run.method.kind == QLORA else float(_TWO)
    layers = _PREFETCHED * numbers.largest_layer * each
    if not run.is_resharded:
        layers = (numbers.layers + numbers.experts) * each
    return layers + numbers.tables * _TWO, numbers.largest_layer * (_TWO + _FOUR) if is_full else 0.0


def _dequantised(shape: ModelShape, run: TrainingRun) -> float:
    """The largest matrix of a 4-bit model while it is multiplied with."""
    if run.method.kind != QLORA:
        return 0.0
    return max((matmul.columns * matmul.depth for matmul in shape.layer_matmuls), default=0) * _TWO / run.plan.tp


def _in_flight(run: TrainingRun, stage: int) -> float:
    """Micro batches with activations that a stage holds at once under 1F1B; interleaved chunks hold a little more."""
    plan = run.plan
    if plan.pp == 1:
        return 1.0
    held = min(plan.pp - stage, run.micro_batches)
    return held * (1 + (plan.pp - 1) / (plan.pp * plan.chunks)) if plan.chunks > 1 else held


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes of one decoder layer and one micro batch: `saved` without recomputation, `kept` with it."""

    saved: float
    kept: float
    working: float


def layer_activations(shape: ModelShape, run: TrainingRun) -> LayerActivations:
    """By the inputs that the backward of each op needs."""
    tokens = run.rank_tokens / run.plan.tp
    hidden = shape.hidden
    matmuls = sum(map(_matmul_bytes, shape.layer_matmuls)) / max(1, shape.layers)
    experts = sum(block.layers * _expert_bytes(block, run) for block in shape.blocks.experts) / max(1, shape.layers)
    gates = 0 if run.compiled or not is_gated(shape.blocks) else _gate_bytes(shape)
    norms = hidden * (4 * _TWO if run.compiled else 4 * _TWO + 2 * _FOUR)
    saved = matmuls + experts + gates + norms
    traced = None if run.compiled else run.traced
    columns = sum(matmul.columns * matmul.layers for matmul in shape.layer_matmuls) / max(1, shape.layers)
    products = _TWO * (2 * hidden + columns / 2)  # the input, attention, and every second matmul
    selective = min(saved, products + experts / 2)
    if traced is not None:
        selective, saved = selective * traced.saved / saved, traced.saved
    kept = {"none": saved, "full": _TWO * hidden if traced is None else traced.kept, "selective": selective}[
        run.recompute
    ]
    widest = max((matmul.columns for matmul in shape.layer_matmuls), default=0)
    return LayerActivations(saved=saved * tokens, kept=kept * tokens, working=_TWO * (widest + hidden) * tokens)


def _matmul_bytes(matmul: EngineMatmul) -> float:
    """What ops around a matmul keep of its input or its result, in all layers."""
    if matmul.split is Split.ROWS:
        return _TWO * matmul.depth * matmul.layers
    return (_FOUR if matmul.part is DecoderPart.ROUTER else _TWO) * matmul.columns * matmul.layers


def _gate_bytes(shape: ModelShape) -> float:
    """The result of an activation function that eager PyTorch keeps apart from what it is multiplied by."""
    rows = (m for m in shape.layer_matmuls if m.part is DecoderPart.MLP and m.split is Split.ROWS)
    return sum(matmul.depth * matmul.layers for matmul in rows) * _TWO / max(1, shape.layers)


def _expert_bytes(block: EngineExperts, run: TrainingRun) -> float:
    """Of one token in one layer: its copies for the chosen experts, what they make of them, and their results."""
    halves = (3 if run.compiled else 4) if block.is_gated else 2
    return block.chosen * _TWO * (2 * block.hidden + halves * block.inner)
