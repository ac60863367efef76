"""The record of one op: everything that is known of it. Each family's file registers its ops with `registered`.

Only the price is required. Every other facet has a default that is right for most ops, and a family may set its own
default for all of its ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.collectives import Collective
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import product_dtype, tensor_bytes
from llm_perf_opt.ops.cost import Formula, OpCost, elements, packet_of


class KernelKind(StrEnum):
    """What sort of work a kernel does, hence which rates apply to it."""

    MATMUL = "matrix product"
    ATTENTION = "fused attention"
    VECTOR = "vector"
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch. `rows` and `weights` describe a product `[rows, k] x [k, n]`: `weights` is `n * k`.

    `skippable_flops` are those of pairs that a causal mask hides: the price counts them, a kernel need not do them.
    `collective` is what a kernel of communication exchanges; None there: the trace does not say between which ranks.
    """

    kind: KernelKind
    dtype: str
    flops: int
    skippable_flops: int
    bytes_moved: int
    avoidable_bytes: int = 0  # of them: what an engine that fuses this work into its neighbours need not move
    rows: int = 0
    weights: int = 0
    sequences: int = 0  # of attention: samples in the batch
    queries: int = 0
    collective: Collective | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedWork:
    """Work that a calibration measures: `sizes` along the axes of the table of `family`, done `times` times over."""

    family: str
    dtype: str
    sizes: Mapping[str, float]
    times: float = 1.0


class Layout(StrEnum):
    """How the result of an op lies in memory."""

    NEW = "new"  # contiguous, or a view that leaves the last dimension where it is
    KEPT = "kept"  # as its first operand lies
    REORDERED = "reordered"  # a view that may put another dimension last


class OpRole(StrEnum):
    """What an op is in the patterns that an analysis looks for."""

    SOFTMAX = "softmax"  # between the two products of attention
    CHOICE = "choice"  # the best of some scores: how a router takes its experts
    LOOKUP = "lookup"  # rows of a table by token id
    GATHER = "gather"  # anything by index, also whole matrices
    APPEND = "append"  # new entries behind those of a cache


LaunchFormula = Callable[[OpKind, OpCost], tuple[Kernel, ...]]
ReadFormula = Callable[[OpKind], list[int]]
CalibratedFormula = Callable[[OpKind], Iterable[CalibratedWork]]


def launches_by_cost(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One product where the price has matrix FLOPs, otherwise one kernel of vector work."""
    if not cost.flops:
        return (vector_kernel(kind, cost),)
    return (product_kernel(kind, cost, width=kind.outputs[0].shape[-1] if kind.outputs[0].shape else 1),)


def product_kernel(kind: OpKind, cost: OpCost, *, width: int) -> Kernel:
    """A product; `width` is the dimension of the output that the weight makes, and all others are rows."""
    rows = max(1, elements(kind.outputs[0]) // max(1, width))
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=compute_dtype(kind),
        flops=cost.flops,
        skippable_flops=0,
        bytes_moved=cost.bytes_moved,
        rows=rows,
        weights=cost.flops // (2 * rows),
    )


def vector_kernel(kind: OpKind, cost: OpCost) -> Kernel:
    """Work that is bound by its bytes."""
    return Kernel(
        kind=KernelKind.VECTOR,
        dtype=compute_dtype(kind),
        flops=cost.flops,
        skippable_flops=0,
        bytes_moved=cost.bytes_moved,
    )


def compute_dtype(kind: OpKind) -> str:
    """The type in which it computes: that of a weight's stored format if it has one, else that of the first operand."""
    return product_dtype(meta.dtype for meta in kind.inputs or kind.outputs) or "float32"


def reads_all(kind: OpKind) -> list[int]:
    """Bytes that the op reads of each input: all of it, and nothing of what it overwrites."""
    sizes = [tensor_bytes(meta) for meta in kind.inputs]
    if kind.mutates and sizes:
        sizes[0] = 0
    return sizes


CALIBRATED_DTYPES = frozenset({"bfloat16", "float16", "float32"})


def sized_work(family: str, meta: TensorMeta, **shape: float) -> CalibratedWork:
    """Work on every value of a tensor; dtypes without tables of their own are taken by their bytes."""
    if meta.dtype in CALIBRATED_DTYPES:
        return CalibratedWork(family=family, dtype=meta.dtype, sizes={"elements": elements(meta), **shape})
    return CalibratedWork(family=family, dtype="float32", sizes={"elements": tensor_bytes(meta) / 4, **shape})


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Everything known of one op, whatever its overload.

    `price` gives FLOPs and bytes. `kernels` are what one run launches on a device, and `reads` the bytes that it must
    read of each input. `calibrated` names the measured families of a calibration that describe it and its size in them;
    None: those of the ops it is made of, or a copy of as many bytes. `turned_weight` is the place of an operand that is
    a weight as `[..., inputs, outputs]`, where others take `[outputs, inputs]`. `is_recorded_whole` keeps a composite
    op as one op of a trace, without its parts. `has_scratch` is False where it holds nothing beside its result.
    """

    price: Formula
    family: WorkFamily = WorkFamily.OTHER
    kernels: LaunchFormula = launches_by_cost
    reads: ReadFormula = reads_all
    calibrated: CalibratedFormula | None = None
    role: OpRole | None = None
    turned_weight: int | None = None
    layout: Layout = Layout.NEW
    copies_scattered_input: bool = False  # it wants rows together, and copies its first input where they are not
    is_recorded_whole: bool = False
    has_scratch: bool = True


def registered(table: Mapping[str, Op]) -> dict[str, Op]:
    """Name -> op, from a table whose keys list names that share every facet; one without a namespace is of aten."""
    return joined(
        {packet_of(name if "." in name else f"aten.{name}"): op}
        for names, op in table.items()
        for name in names.split()
    )


def joined(tables: Iterable[Mapping[str, Op]]) -> dict[str, Op]:
    """One table of all; an op that is registered twice raises, since one record would silently win."""
    found: dict[str, Op] = {}
    for table in tables:
        if twice := found.keys() & table.keys():
            raise ValueError(f"ops registered twice: {', '.join(sorted(twice))}")
        found.update(table)
    return found
