"""One training step as figures: what was asked for, the work of each phase, and the memory over time.

Everything is counted from one weightless run of the model's own forward, of autograd's backward and of torch's own
optimizer. All figures are of one rank that holds the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.recorded_step import PHASES as PHASES
from llm_perf_opt.core.training_setup import TrainingSetup as TrainingSetup


class MemoryKind(StrEnum):
    """What a block of memory is for. Each block has one kind for its whole life."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"  # what is in `.grad` of a parameter
    OPTIMIZER_STATES = "optimizer states"
    SAVED_ACTIVATIONS = "saved activations"  # made in a forward, and alive when the backward begins to use them
    WORKING = "working memory"  # everything else: temporaries of any phase
    INPUTS = "inputs"  # token ids and labels


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulGroup:
    """Alike matmuls of a phase: `count` launches of `batch` matmuls `[m, k] x [k, n]` each.

    `family` is the module that they belong to, with a `*` for the number of a layer or expert.
    Of a grouped matmul `m` is the mean number of rows of a group, rounded, and `flops` is exact.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    count: int
    family: str
    flops: int  # of all of them
    bytes_moved: int  # of all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup:
    """Alike fused attention kernels of a phase. `flops` counts every pair of query and key, also the masked ones.

    `skippable_flops` are the pairs that a causal mask hides.
    """

    sequences: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    is_causal: bool
    is_backward: bool
    dtype: str
    count: int
    family: str
    flops: int
    skippable_flops: int
    bytes_moved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWork:
    """The work of one phase in one optimizer step, all its micro batches together.

    `flops` is matrix work (matmuls, convolutions, attention), one multiply-add as two. `recomputed_flops` is the part
    of it that recomputation adds. `unpriced` are ops of unknown cost, which is in no figure, with their count.
    """

    name: str  # forward | loss | backward | optimizer
    flops: int
    flops_by_dtype: Mapping[str, int]
    recomputed_flops: int
    bytes_read: int
    bytes_written: int
    launches: int
    matmuls: tuple[MatmulGroup, ...]
    attention: tuple[AttentionGroup, ...]
    vector_bytes: int  # moved by everything that is no matmul and no fused attention
    vector_flops: int
    ops: int  # views included
    unpriced: Mapping[str, int]

    @property
    def bytes_moved(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAlive:
    """Blocks of memory alike in kind, shape and module, alive at one moment; `bytes` is of all of them together."""

    name: str  # of a parameter with `*` for the number of its layer; otherwise the op that made it
    module: str  # with `*` for the number of a layer or expert; empty: outside any module
    shape: tuple[int, ...]  # empty where the trace does not tell, as for what an op holds next to its result
    dtype: str
    bytes: int
    count: int
    kind: MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAtPeak:
    """The moment at which most bytes were alive: allocated tensors, without the context and the cache of a device."""

    peak_bytes: int
    by_kind: Mapping[MemoryKind, int]
    phase: str
    op: str
    module: str
    tensors: tuple[TensorAlive, ...]  # the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Bytes alive while one op ran. The points of a step are bounded in number and keep every phase's peak."""

    op_index: int
    phase: str
    by_kind: Mapping[MemoryKind, int]

    @property
    def bytes(self) -> int:
        """All kinds together."""
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step: forward, loss and backward of every micro batch, then the optimizer.

    `parameters` counts numbers, tied weights once. `active_parameters` are those that one token meets: of the routed
    experts only as many as are chosen. Bytes are as allocated. `layer_saved_bytes` is what each decoder layer keeps
    from its forward to its backward; with recomputation, `layer_recomputed_bytes` is what comes back in addition for
    the one layer that a backward runs again. `layer_input_bytes` is the tensor that a layer takes. All three are 0 for
    a model without layers. `peak_by_phase` is the most that was alive in each phase. The optimizer's
    states are there from the beginning, as in every step but the first.
    """

    model: str
    setup: TrainingSetup | None  # None: a step of a script's own
    parameters: int
    trainable_parameters: int
    active_parameters: int
    layers: int
    layer_parameters: int  # of the largest decoder layer
    embedding_parameters: int  # of lookup tables by token id, which do no matmul; 0 where they are tied to the head
    weights_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    logits_bytes: int  # of the head's own result, for one micro batch
    layer_saved_bytes: int
    layer_recomputed_bytes: int
    layer_input_bytes: int
    phases: tuple[PhaseWork, ...]  # in the order of PHASES
    peak: MemoryAtPeak
    peak_by_phase: Mapping[str, MemoryAtPeak]
    memory: tuple[MemoryPoint, ...]
    notes: tuple[str, ...] = ()  # what a reader must know of the trace
    graphs: tuple[CallGraph, ...] = field(default=(), repr=False, compare=False)  # one for each phase

    def phase(self, name: str) -> PhaseWork:
        """The work of the phase of this name."""
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def flops(self) -> int:
        """Matrix FLOPs of the step, with what recomputation adds."""
        return sum(phase.flops for phase in self.phases)

    @property
    def recomputed_flops(self) -> int:
        """What recomputation adds."""
        return sum(phase.recomputed_flops for phase in self.phases)
