"""The shapes of kernels as tables of measured times list them: matrix products, attention, routed experts.

FLOPs and bytes are enough for a roofline. A measured table needs the dimensions themselves: a product of 16 rows takes
as long as one of 8, and attention over 8 key heads longer than over 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShape:
    """`count` products `[rows, depth] x [depth, columns]` in one launch.

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

    `window` is how many keys a query sees at most. With `latent_rank` keys and values are one latent vector of so many
    numbers per token, and heads share it. None: no such limit, no latent vector.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """The routed experts of one layer in one grouped kernel: up, gate and down, without router and shared expert.

    `tokens`, `experts` and `inner` are those of all ranks together; `tensor_ranks` share each expert, `expert_ranks`
    have experts of their own.
    """

    tokens: int
    hidden: int
    inner: int
    experts: int
    chosen: int
    tensor_ranks: int = 1
    expert_ranks: int = 1
    weight_format: str = "bfloat16"


KernelShape = ProductShape | AttentionShape | ExpertsShape
