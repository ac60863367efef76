"""The shapes of kernels as tables of measured times list them: matmuls, attention, routed experts, states.

FLOPs and bytes are enough for a roofline. A measured table needs the dimensions themselves: a matmul of 16 rows takes
as long as one of 8, and attention over 8 key heads longer than over 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """`count` matmuls `[rows, depth] x [depth, columns]` in one launch.

    `weight_format` is the dtype or the stored format of the right operand, as `core/tensor_formats.py` names it.
    """

    rows: int
    columns: int
    depth: int
    count: int = 1
    weight_format: str = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """One fused attention: `heads` queries of `width` numbers over `key_heads` keys, for each of `sequences`.

    `window` is how many keys a query sees at most. With `latent_rank` keys and values are one latent vector of that
    length per token, and heads share it. None: no such limit, no latent vector.
    """

    sequences: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    is_causal: bool
    window: int | None = None
    latent_rank: int | None = None
    cache_format: str = "bfloat16"


_MXFP4_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """The routed experts of one layer in one grouped kernel: up, gate and down, without router and shared expert.

    `tokens`, `experts` and `inner` count all ranks together; `tensor_ranks` share each expert, `expert_ranks` have
    experts of their own. Experts that are not `is_gated` have up and down alone. Where rows are sent, a rank gets those
    of its own experts and no others; else it has all rows and picks its own.
    """

    tokens: int
    hidden: int
    inner: int
    experts: int
    chosen: int
    tensor_ranks: int = 1
    expert_ranks: int = 1
    weight_format: str = "bfloat16"
    is_gated: bool = True
    are_rows_sent: bool = False

    @property
    def inner_of_rank(self) -> int:
        """Inner width that one rank multiplies with: kernels for mxfp4 take whole steps of 64 numbers, or of 128.

        vLLM pads to 64 for Triton's kernel, which it takes on Hopper; to 128, and the hidden width to 256, for others.
        """
        step = _MXFP4_STEP if self.weight_format.startswith("mxfp4") else 1
        return -(-self.inner // (self.tensor_ranks * step)) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentModuleShape:
    """A whole module of latent attention in one row: its projections, the absorbed matmuls and attention itself.

    `projections` is the table's format of their weights; `sparse_model` has an indexer that picks the keys, None: none.
    """

    attention: AttentionShape
    projections: str = "bfloat16"
    sparse_model: str | None = None


HEAD_WIDTH = 128  # of keys and of values of a gated delta rule, in every measured model


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The state of one layer without attention; heads belong to a gated delta rule on one rank, 0: another rule."""

    sequences: int
    queries: int
    key_heads: int = 0
    value_heads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """One side of the LoRA adapters of a linear layer: `width` numbers of each row to the rank, or back."""

    rows: int
    width: int
    rank: int
    is_shrink: bool


KernelShape = MatmulShape | AttentionShape | ExpertsShape | LatentModuleShape | StateShape | AdapterShape
