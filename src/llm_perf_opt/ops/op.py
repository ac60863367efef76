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
from llm_perf_opt.core.tensor_formats import matmul_dtype, tensor_bytes
from llm_perf_opt.ops.cost import Formula, OpCost, elements, packet_of
from llm_perf_opt.ops.kernel_shape import KernelShape, MatmulShape


class KernelKind(StrEnum):
    """What sort of work a kernel does, hence which rates apply to it."""

    MATMUL = "matmul"
    ATTENTION = "fused attention"
    VECTOR = "vector"
    COMMUNICATION = "communication"


class AccessPattern(StrEnum):
    """How a kernel goes through memory, hence which share of the bandwidth it reaches. A matmul has one if unusual."""

    VECTORISED = "vectorised"  # several neighbouring values at once
    ACTIVATION = "activation"  # the same, with an exponential or an error function for each value
    INDEXED = "indexed"  # value by value: an operand is broadcast, or lies scattered
    CONCATENATED = "concatenated"
    GATHERED = "gathered"  # rows by index
    NORMALISED = "normalised"  # rows read twice: mean and variance first
    SOFTMAX = "softmax"
    LONG_SOFTMAX = "long_softmax"  # rows too long for registers, read three times value by value
    REDUCED = "reduced"
    UNALIGNED = "unaligned"  # of a matmul: rows that do not begin at 16 bytes
    UNALIGNED_CHANNELS = "unaligned channels"  # of a convolution: they fill no 16 bytes, as three colours


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel launch. `rows` and `weights` describe a matmul `[rows, k] x [k, n]`: `weights` is `n * k`.

    `skippable_flops` belong to pairs that a causal mask hides: the price counts them, a kernel need not do them.
    `collective` is what a communication kernel runs; None there: the trace does not say between which ranks.
    `shape` are the dimensions that a table of measured kernels asks for; None: not known, or no table lists such work.
    `pattern` is how a vector kernel goes through memory; None: not known. A helper is a copy or a change of layout that
    eager PyTorch runs in addition to the op's work, and an engine that keeps one layout does not.
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
    shape: KernelShape | None = None
    pattern: AccessPattern | None = None
    is_helper: bool = False


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

    SOFTMAX = "softmax"  # between the two matmuls of attention
    CHOICE = "choice"  # the best of some scores: how a router takes its experts
    LOOKUP = "lookup"  # rows of a table by token id
    GATHER = "gather"  # anything by index, also whole matrices
    APPEND = "append"  # new entries behind the ones a cache has


_TWO_BYTES = frozenset({"bfloat16", "float16"})
_ALIGNED_VALUES = 8  # of two bytes

LaunchFormula = Callable[[OpKind, OpCost], tuple[Kernel, ...]]
ReadFormula = Callable[[OpKind], list[int]]
CalibratedFormula = Callable[[OpKind], Iterable[CalibratedWork]]


def launches_by_cost(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
    """One matmul where the price has matrix FLOPs, otherwise one kernel of vector work."""
    if not cost.flops:
        return (vector_kernel(kind, cost),)
    return (matmul_kernel(kind, cost, width=kind.outputs[0].shape[-1] if kind.outputs[0].shape else 1),)


def matmul_kernel(kind: OpKind, cost: OpCost, *, width: int) -> Kernel:
    """A matmul; `width` is the dimension of the output that the weight makes, and all others are rows."""
    rows = max(1, elements(kind.outputs[0]) // max(1, width))
    weights = cost.flops // (2 * rows)
    return Kernel(
        kind=KernelKind.MATMUL,
        dtype=compute_dtype(kind),
        flops=cost.flops,
        skippable_flops=0,
        bytes_moved=cost.bytes_moved,
        rows=rows,
        weights=weights,
        shape=_matmul_shape(kind, rows, width, weights // max(1, width)),
        pattern=None if is_aligned(kind, width, weights // max(1, width)) else AccessPattern.UNALIGNED,
    )


def is_aligned(kind: OpKind, *lengths: int) -> bool:
    """Whether rows of these lengths begin at 16 bytes, which the loads of matrix engines want; wider types do well."""
    return compute_dtype(kind) not in _TWO_BYTES or not any(length % _ALIGNED_VALUES for length in lengths)


def _matmul_shape(kind: OpKind, rows: int, columns: int, depth: int) -> MatmulShape | None:
    """The matmul as a table lists it, from the operand with both of its dimensions; None: no operand has them.

    An operand of more than two dimensions is a stack of matrices, each with rows of its own. The weight of a
    convolution has the summed length in all dimensions but its first.
    """
    for meta in reversed(kind.inputs):
        if len(meta.shape) < 2 or not elements(meta):
            continue
        if {columns, depth} == set(meta.shape[-2:]):
            count = elements(meta) // (columns * depth)
        elif meta.shape[0] == columns and elements(meta) == columns * depth:
            count = 1
        else:
            continue
        if rows % count == 0:
            return MatmulShape(rows=rows // count, columns=columns, depth=depth, count=count, weight_format=meta.dtype)
    return None


def vector_kernel(kind: OpKind, cost: OpCost, pattern: AccessPattern | None = None) -> Kernel:
    """Work that is bound by its bytes. Default of `pattern`: by whether the operands are of one shape."""
    return Kernel(
        kind=KernelKind.VECTOR,
        dtype=compute_dtype(kind),
        flops=cost.flops,
        skippable_flops=0,
        bytes_moved=cost.bytes_moved,
        pattern=pattern or (AccessPattern.INDEXED if _is_broadcast(kind) else AccessPattern.VECTORISED),
    )


def _is_broadcast(kind: OpKind) -> bool:
    """Whether an operand of several values is repeated along others."""
    sizes = {elements(meta) for meta in kind.inputs} - {1}
    return len(sizes) > 1


def launches(pattern: AccessPattern) -> LaunchFormula:
    """One vector kernel that goes through memory in this way."""

    def kernels(kind: OpKind, cost: OpCost) -> tuple[Kernel, ...]:
        return (vector_kernel(kind, cost, pattern),)

    return kernels


def helper_kernel(meta: TensorMeta) -> Kernel:
    """A tensor copied into another layout, in addition to the work of an op."""
    return Kernel(
        kind=KernelKind.VECTOR,
        dtype=meta.dtype,
        flops=0,
        skippable_flops=0,
        bytes_moved=2 * tensor_bytes(meta),
        pattern=AccessPattern.INDEXED,
        is_helper=True,
    )


def compute_dtype(kind: OpKind) -> str:
    """The type in which it computes: from a weight's stored format if it has one, else the first operand's."""
    return matmul_dtype(meta.dtype for meta in kind.inputs or kind.outputs) or "float32"


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
    None: the ops it is made of describe it, or a copy of as many bytes does. `turned_weight` is the place of an operand
    that is a weight as `[..., inputs, outputs]`, where others take `[outputs, inputs]`. `is_recorded_whole` keeps a
    composite op as one op of a trace, without its parts. `has_scratch` is False where it holds nothing but its result.
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
    """Name -> op, from a table with lists of names as keys, equal in every facet; a bare name is in aten."""
    return joined(
        {packet_of(name if "." in name else f"aten.{name}"): op}
        for names, op in table.items()
        for name in names.split()
    )


def joined(tables: Iterable[Mapping[str, Op]]) -> dict[str, Op]:
    """One table of all; an op that is registered twice raises, since one record would silently win."""
    joined_table: dict[str, Op] = {}
    for table in tables:
        if twice := joined_table.keys() & table.keys():
            raise ValueError(f"ops registered twice: {', '.join(sorted(twice))}")
        joined_table.update(table)
    return joined_table
