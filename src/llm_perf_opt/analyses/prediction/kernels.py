"""What an op launches on a device: a view nothing, a primitive op one kernel, a composite one those of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from llm_perf_opt.analyses.pricing import OpCost, price
from llm_perf_opt.analyses.pricing.op_cost import bytes_in_and_out, elements, operand
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.callgraph.tensor_formats import product_dtype
from llm_perf_opt.core.source_figures import Family, family_of


class Work(StrEnum):
    """What sort of work a kernel does, hence which bands apply to it."""

    MATMUL = "matrix product"
    ATTENTION = "fused attention"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch. `rows` and `weights` describe a product `[rows, k] x [k, n]`: `weights` is `n * k`.

    `skippable_flops` are those of pairs that a causal mask hides: the price counts them, a kernel need not do them.
    """

    work: Work
    dtype: str
    flops: int
    skippable_flops: int
    bytes_moved: int
    avoidable_bytes: int = 0  # of them: what an engine that fuses this work into its neighbours need not move
    rows: int = 0
    weights: int = 0
    sequences: int = 0  # of attention: samples in the batch
    queries: int = 0


@lru_cache(maxsize=65536)
def kernels_of(kind: OpKind) -> tuple[Kernel, ...]:
    """The kernels that one run of `kind` launches; an op without a price launches one of unknown work."""
    cost = price(kind)
    if cost is not None and not (cost.flops or cost.bytes_moved):
        return ()
    if kind.parts:
        return tuple(kernel for part in kind.parts for kernel in kernels_of(part))
    if cost is None:
        return (_vector(kind, OpCost(bytes_moved=bytes_in_and_out(kind))),)
    family = family_of(kind.name)
    if family is Family.ATTENTION:
        return (_attention(kind, cost),)
    return (_product(kind, cost, family),) if cost.flops else (_vector(kind, cost),)


def _vector(kind: OpKind, cost: OpCost) -> Kernel:
    return Kernel(
        work=Work.VECTOR, dtype=_dtype(kind), flops=cost.flops, skippable_flops=0, bytes_moved=cost.bytes_moved
    )


def _product(kind: OpKind, cost: OpCost, family: Family) -> Kernel:
    out = kind.outputs[0]
    width = out.shape[1] if family is Family.CONVOLUTION and len(out.shape) > 1 else out.shape[-1] if out.shape else 1
    rows = max(1, elements(out) // max(1, width))
    return Kernel(
        work=Work.MATMUL,
        dtype=_dtype(kind),
        flops=cost.flops,
        skippable_flops=0,
        bytes_moved=cost.bytes_moved,
        rows=rows,
        weights=cost.flops // (2 * rows),
    )


def _attention(kind: OpKind, cost: OpCost) -> Kernel:
    """A causal mask over `q` queries and `q` keys hides `q * (q - 1) / 2` of the pairs."""
    query = operand(kind, 0, "query", "q")
    queries = query.shape[-2] if len(query.shape) > 1 else 1
    is_causal = bool(kind.arguments.get("is_causal"))
    return Kernel(
        work=Work.ATTENTION,
        dtype=_dtype(kind),
        flops=cost.flops,
        skippable_flops=cost.flops * (queries - 1) // (2 * queries) if is_causal else 0,
        bytes_moved=cost.bytes_moved,
        sequences=query.shape[0] if len(query.shape) > 3 else 1,
        queries=queries,
    )


def _dtype(kind: OpKind) -> str:
    """The type in which it computes: that of a weight's stored format if it has one, else that of the first operand."""
    return product_dtype(meta.dtype for meta in kind.inputs or kind.outputs) or "float32"
