"""A training run as it was asked for: the method, the formats of weights and states, the plan, and the batch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Cluster

RECOMPUTATIONS = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")
LOSSES = ("whole", "chunked", "fused")
WEIGHTS = ("mixed", "bf16", "master")
_CHOICES = {"recompute": RECOMPUTATIONS, "precision": PRECISIONS, "loss": LOSSES}
FULL, LORA, QLORA = METHODS = ("full", "lora", "qlora")
DEFAULT_RANK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMethod:
    """Which weights are trained. `rank` is of the adapters; 0: there are none. `trains_tables`: the embedding as well.

    Adapters are on every linear layer of the decoder, or on the attention alone. The routed experts are adapted where
    `on_experts`: peft leaves experts that are one tensor alone.
    """

    kind: str = FULL
    rank: int = 0
    on_attention_alone: bool = False
    on_experts: bool = False
    trains_tables: bool = False

    @property
    def has_adapters(self) -> bool:
        """Whether the model's own weights are frozen."""
        return self.kind != FULL

    def __str__(self) -> str:
        return f"{self.kind}:{self.rank}" if self.has_adapters else self.kind


def read_method(text: str) -> TrainingMethod:
    """`full`, `lora:16`, `qlora:64`."""
    match = re.fullmatch(r"(full|lora|qlora)(?::(\d{1,5}))?", text.strip().lower())
    if match is None or (match[1] == FULL and match[2]) or match[2] == "0":
        raise UsageError(
            f"{text[:60]!r} is no training method.",
            why="it is full, or lora or qlora with the rank of the adapters",
            fix="write --method full, --method lora:16 or --method qlora:16",
        )
    return TrainingMethod(kind=match[1], rank=0 if match[1] == FULL else int(match[2] or DEFAULT_RANK))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes that a trained number takes: as a weight, as a gradient, and in the optimizer.

    `factored` states are of rows and columns, and take `states` for each of those.
    """

    weights: float
    gradients: float
    states: float
    factored: bool = False

    @property
    def kind(self) -> str:
        """The word of `--states`."""
        return "master" if self.gradients > self.weights else "mixed" if self.weights > _TWO_BYTES else "bf16"


_TWO_BYTES = 2.0
_WEIGHTS_OF = {"mixed": (4.0, 4.0, 0.0), "bf16": (2.0, 2.0, 0.0), "master": (2.0, 4.0, 4.0)}
# Numbers of a trained weight that an optimizer keeps, and whether they are in the format of the weights.
_STATES_OF = {"adamw": 2.0, "sgd": 0.0, "sgd-momentum": 1.0, "lion": 1.0}
_EIGHT_BITS = 2 * (1 + 4 / 256)  # bitsandbytes: two numbers in 8 bits, and a scale of 32 bits for each block of 256
OPTIMIZERS = (*_STATES_OF, "adamw8bit", "paged-adamw8bit", "adafactor")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise UsageError(
            f"{name} cannot be {value[:60]!r}.", why=f"the choices are {', '.join(choices)}", fix="name one of them"
        )


def state_bytes(optimizer: str, weights: str) -> StateBytes:
    """What torch and bitsandbytes allocate.

    `mixed` weights are in 32 bits and cast to 16 in each forward, `bf16` weights and states are in 16 bits, and of
    `master` weights there is a copy in 32 bits with gradients in 32 bits, as in Megatron.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError(
            f"{optimizer[:60]!r} is no optimizer that is known here.",
            why=f"known are {', '.join(OPTIMIZERS)}",
            fix="name one of them",
        )
    check_choice("states", weights, WEIGHTS)
    stored, gradients, master = _WEIGHTS_OF[weights]
    if optimizer.endswith("8bit"):
        return StateBytes(weights=stored, gradients=gradients, states=master + _EIGHT_BITS)
    if optimizer == "adafactor":
        return StateBytes(weights=stored, gradients=gradients, states=4.0, factored=True)
    each = 2.0 if weights == "bf16" else 4.0
    return StateBytes(weights=stored, gradients=gradients, states=master + each * _STATES_OF[optimizer])


class Shard(StrEnum):
    """What data-parallel ranks share out instead of each holding it."""

    NOTHING = "ddp"
    STATES = "zero1"
    GRADIENTS = "zero2"
    WEIGHTS = "fsdp"  # ZeRO-3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How `gpus` ranks share a model and a batch. Tensor parallel is innermost, then context, data and pipeline.

    `degree` ranks of the data-parallel ones share what `shard` names; the others have copies. Tensor parallel is with
    sequence parallel: between its matmuls each rank has a part of the tokens. Experts are spread over `ep` ranks of
    those that share tokens.
    """

    gpus: int = 1
    tp: int = 1
    pp: int = 1
    chunks: int = 1  # of layers on each pipeline stage: interleaved schedules have several
    cp: int = 1
    ep: int = 1
    shard: Shard = Shard.NOTHING
    degree: int = 1

    def __post_init__(self) -> None:
        if self.gpus % (self.tp * self.pp * self.cp) or self.data_ranks % self.degree:
            raise UsageError(
                f"{self.gpus} GPUs cannot run {self}.",
                why="tp x pp x cp x fsdp must divide the number of GPUs",
                fix="change the plan, or the number of GPUs in --gpus",
            )
        if (self.tp * self.cp * self.data_ranks) % self.ep:
            raise UsageError(
                f"{self.ep} ranks cannot share the experts.",
                why=f"a pipeline stage has {self.tp * self.cp * self.data_ranks} ranks",
                fix="choose an ep that divides them",
            )

    @property
    def data_ranks(self) -> int:
        """Ranks with tokens of their own, context-parallel ones counted as one."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def shard_ranks(self) -> int:
        """Ranks that share what is sharded; context-parallel ones hold the same weights, and share them too."""
        return 1 if self.shard is Shard.NOTHING else self.degree * self.cp

    @property
    def expert_shard_ranks(self) -> int:
        """The same for the experts of one rank: copies of them are on the ranks of a stage that `ep` leaves."""
        return max(1, self.shard_ranks * self.tp // self.ep)

    def __str__(self) -> str:
        kinds = {"tp": self.tp, "pp": self.pp, "vp": self.chunks, "cp": self.cp, "ep": self.ep}
        words = [f"{name}{size}" for name, size in kinds.items() if size > 1]
        ranks = self.degree if self.shard is Shard.WEIGHTS else self.data_ranks
        if ranks > 1 or not words:
            spread = self.shard.value if self.shard in (Shard.NOTHING, Shard.WEIGHTS) else f"{self.shard.value}x"
            words.append(f"{spread}{ranks}" if ranks > 1 else "one GPU")
        return ",".join(words)


_PART = re.compile(r"(tp|pp|vp|cp|ep|fsdp|ddp|zero1x?|zero2x?|zero3x?)(\d{0,5})")


def read_plan(text: str, gpus: int) -> TrainingPlan:
    """`fsdp8`, `tp2,fsdp4`, `ddp`, `zero2`, `pp4,vp2,tp8`: what is not named is 1, and the rest is data parallel."""
    sizes: dict[str, int] = {}
    shard, degree = Shard.NOTHING, None
    for word in (word.strip().lower() for word in text.split(",")):
        match = _PART.fullmatch(word)
        is_axis = match is not None and match[1] in ("tp", "pp", "vp", "cp", "ep")
        if match is None or (is_axis and not match[2]):
            raise UsageError(
                f"{word[:60]!r} is no part of a training plan.",
                why="parts are tpN, ppN, vpN, cpN, epN, and one of fsdpN, ddp, zero1 and zero2",
                fix="write --plan fsdp8, or --plan tp2,pp4,zero1",
            )
        if is_axis:
            sizes[match[1]] = int(match[2])
            continue
        kind = match[1].rstrip("x")
        shard = Shard.WEIGHTS if kind == "zero3" else Shard(kind)
        degree = int(match[2]) if match[2] else None
    ranks = gpus // max(1, math.prod(sizes.get(name, 1) for name in ("tp", "pp", "cp")))
    return TrainingPlan(
        gpus=gpus,
        tp=sizes.get("tp", 1),
        pp=sizes.get("pp", 1),
        chunks=sizes.get("vp", 1),
        cp=sizes.get("cp", 1),
        ep=sizes.get("ep", 1),
        shard=shard,
        degree=1 if shard is Shard.NOTHING else degree or max(1, ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSizes:
    """Bytes that one decoder layer of eager code holds for each token, from a weightless training step.

    `saved` is for a backward without recomputation, `kept` where the whole layer is run again.
    """

    saved: float
    kept: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A run on a cluster. `sequences` are of one optimizer step, on all ranks; `compiled`: torch.compile fuses ops.

    `is_resharded`: weights that were gathered for the forward are gathered again for the backward.
    """

    method: TrainingMethod
    states: StateBytes
    plan: TrainingPlan
    cluster: Cluster
    sequence: int
    micro_batch: int
    sequences: int
    recompute: str = "none"
    optimizer: str = "adamw"
    precision: str = "bf16"
    loss: str = "whole"
    compiled: bool = False
    frozen_bytes: float = 2.0  # of a number of a weight that is not trained
    is_resharded: bool = True
    trains_towers: bool = False
    traced: TracedSizes | None = None  # of the model's own code; None: by rules
    offloads: bool = False  # weights, gradients and states are in the memory of the host
    has_own_attention: bool = False  # kernels of the device, as Transformer Engine runs them

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("sequence", "micro_batch", "sequences"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"A run cannot have {getattr(self, name)} of {name.replace('_', ' ')}.",
                    why="a step trains on at least one token",
                    fix="give a number of at least 1",
                )

    @property
    def micro_batches(self) -> int:
        """Of one rank in an optimizer step."""
        return max(1, round(self.sequences / (self.micro_batch * self.plan.data_ranks)))

    @property
    def rank_tokens(self) -> float:
        """Of one micro batch on one rank; its tensor-parallel neighbours share them."""
        return self.micro_batch * self.sequence / self.plan.cp

    @property
    def step_tokens(self) -> int:
        """Of all ranks in an optimizer step."""
        return self.micro_batches * self.micro_batch * self.plan.data_ranks * self.sequence
