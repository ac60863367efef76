"""Matmuls: one multiply-add per output value and summed index, two FLOPs each.

Every matmul here follows one rule: `2 * output values * summed length`. It covers batches, broadcasting and vectors:
`matmul` and `linear` cost the same as the `mm` and `bmm` they turn into.

An `einsum` is priced step by step in the order in which torch contracts its operands. A step that sums over an index
both operands carry is a matmul. One that sums over nothing is an elementwise multiplication, and an index that
only one operand carries is added up before the matmul: both are vector work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.ops.cost import Formula, OpCost, bytes_in_and_out, elements, elements_of, operand
from llm_perf_opt.ops.op import CalibratedWork, Op, registered, sized_work

Sizes = dict[str, int]  # size of each index that one operand carries

_EUCLIDEAN_BY_MATMUL_ABOVE_ROWS = 25  # torch's own threshold between its two ways to compute `cdist`
_NARROWEST_WEIGHT = 256  # columns; below, a weight is small and stays in a cache
_WIDEST_WEIGHT = 5120  # columns; above, the result no longer fits one either


def einsum(kind: OpKind) -> OpCost | None:
    """The sum of the pairwise steps; None where the equation was not recorded.

    The bytes count the operands and the result: the shapes do not show what is between two steps.
    """
    equation = kind.arguments.get("equation")
    if not isinstance(equation, str):
        return None
    terms, result = _terms(equation.replace(" ", ""), [len(meta.shape) for meta in kind.inputs])
    pending = [_sizes(term, meta.shape) for term, meta in zip(terms, kind.inputs, strict=True)]
    cost = OpCost(bytes_moved=bytes_in_and_out(kind))
    for first, second in _steps(len(pending), kind.arguments.get("path")):
        left, right = pending[first], pending[second]
        pending = [sizes for place, sizes in enumerate(pending) if place not in (first, second)]
        needed = set(result).union(*pending)
        merged, step = _pair(left, right, needed)
        pending.append(merged)
        cost += step
    return cost + _sum_alone(pending[0], set(result))


def _pair(left: Sizes, right: Sizes, needed: set[str]) -> tuple[Sizes, OpCost]:
    """One contraction of two operands; `needed` are the indices that later steps or the result still carry."""
    left, left_sum = _summed_early(left, right, needed)
    right, right_sum = _summed_early(right, left, needed)
    union = {index: max(left.get(index, 1), right.get(index, 1)) for index in left | right}
    summed = [index for index in union if index not in needed and union[index] > 1]
    merged = {index: size for index, size in union.items() if index in needed}
    steps = math.prod(union.values())
    matmul = OpCost(flops=2 * steps) if summed else OpCost(vector_flops=steps)
    return merged, matmul + left_sum + right_sum


def _summed_early(own: Sizes, other: Sizes, needed: set[str]) -> tuple[Sizes, OpCost]:
    """`own` without the indices that no other operand carries, and the additions that removed them."""
    alone = {index for index, size in own.items() if index not in needed and size > 1 and other.get(index, 1) == 1}
    if not alone:
        return own, OpCost()
    remaining = {index: size for index, size in own.items() if index not in alone}
    return remaining, OpCost(vector_flops=math.prod(own.values()))


def _sum_alone(own: Sizes, needed: set[str]) -> OpCost:
    """The additions left over when a single operand carries more indices than the result."""
    return _summed_early(own, {}, needed)[1]


def _steps(operand_count: int, path: list[int] | None) -> Iterator[tuple[int, int]]:
    """Places of the two operands of each step; their result is appended. Without a path, from left to right."""
    if path:
        yield from zip(path[::2], path[1::2], strict=True)
    elif operand_count > 1:
        yield 0, 1
        for remaining in range(operand_count - 2, 0, -1):
            yield remaining, 0  # the running result was appended last, the next operand stands first


def _terms(equation: str, dimensions: list[int]) -> tuple[list[list[str]], list[str]]:
    """The indices of every operand and of the result, an ellipsis spelled out as numbered indices."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widths = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, dimensions, strict=True)
    ]
    widest = max(widths, default=0)
    spelled = [_spell(term, width, widest) for term, width in zip(terms, widths, strict=True)]
    if arrow:
        return spelled, _spell(right, widest, widest)
    counts = Counter(index for term in spelled for index in term)
    batch = [str(place) for place in range(widest)]
    return spelled, batch + sorted(index for index, count in counts.items() if count == 1 and index not in batch)


def _spell(term: str, width: int, widest: int) -> list[str]:
    """The indices of one term; an ellipsis of `width` dimensions takes the last of the `widest` numbered ones."""
    before, ellipsis, after = term.partition("...")
    middle = [str(place) for place in range(widest - width, widest)] if ellipsis else []
    return [*before, *middle, *after]


def _sizes(term: list[str], shape: tuple[int, ...]) -> Sizes:
    """Index sizes of one operand; an index given twice is its diagonal."""
    return dict(zip(term, shape, strict=True))


def matmul(position: int, *names: str) -> Formula:
    """The formula of a matmul where the left operand, found by name or position, ends in the summed dimension."""

    def price(kind: OpKind) -> OpCost:
        left = operand(kind, position, *names)
        return contraction(kind, left.shape[-1] if left.shape else 1)

    return price


def matmul_plus_addend(position: int, *names: str) -> Formula:
    """A matmul onto which its first operand is added: `addmm` and its kin."""

    def price(kind: OpKind) -> OpCost:
        cost = contraction(kind, operand(kind, position, *names).shape[-1])
        return cost + OpCost(vector_flops=elements(kind.outputs[0]))

    return price


def contraction(kind: OpKind, summed_length: int) -> OpCost:
    """The rule of every matmul: each output value takes `summed_length` multiply-adds."""
    output = elements(kind.outputs[0])
    return OpCost(
        flops=2 * output * summed_length,
        vector_flops=output if "bias" in kind.input_names else 0,
        bytes_moved=bytes_in_and_out(kind),
    )


def batch_summed_matmul(kind: OpKind) -> OpCost:
    """`addbmm` adds up the matmuls of the whole batch: batch and inner dimension are both summed."""
    left = operand(kind, 1, "batch1")
    return contraction(kind, left.shape[0] * left.shape[-1]) + OpCost(vector_flops=elements(kind.outputs[0]))


def matmul_list(kind: OpKind) -> OpCost:
    """Several matmuls in one op: the left operands come first."""
    lefts = kind.inputs[: len(kind.outputs)]
    macs = sum(elements(out) * left.shape[-1] for left, out in zip(lefts, kind.outputs, strict=True))
    return OpCost(flops=2 * macs, bytes_moved=bytes_in_and_out(kind))


def vector_product_along(kind: OpKind) -> OpCost:
    """`linalg_vecdot` sums along `dim` of its first operand."""
    return contraction(kind, operand(kind, 0, "x").shape[kind.arguments.get("dim", -1)])


def tensordot(kind: OpKind) -> OpCost:
    """Sums over the paired dimensions; a pair of sizes 1 and n is summed before the matmul, not in it."""
    left, right = operand(kind, 0, "self"), operand(kind, 1, "other")
    pairs = zip(kind.arguments["dims_self"], kind.arguments["dims_other"], strict=True)
    return contraction(kind, math.prod(min(left.shape[i], right.shape[j]) for i, j in pairs))


def bilinear(kind: OpKind) -> OpCost:
    """`x1 . W[o] . x2` for each of the outputs o: first x1 times the weight, then the result times x2."""
    weight = operand(kind, 2, "weight")
    left_length, right_length = weight.shape[1:]
    cost = contraction(kind, right_length)
    return cost + OpCost(flops=2 * elements(kind.outputs[0]) * left_length * right_length)


def affine_grid(kind: OpKind) -> OpCost:
    """Each grid point, in homogeneous coordinates, times the transform of its sample."""
    return contraction(kind, operand(kind, 0, "theta").shape[-1])


def distance_matrix(kind: OpKind) -> OpCost:
    """Euclidean distances of many points are computed as one matmul, all others pair by pair."""
    left, right = operand(kind, 0, "x1"), operand(kind, 1, "x2")
    rows = max(left.shape[-2], right.shape[-2])
    steps = elements(kind.outputs[0]) * left.shape[-1]
    if kind.arguments.get("p", 2.0) == 2.0 and rows > _EUCLIDEAN_BY_MATMUL_ABOVE_ROWS:
        vector = 2 * elements_of(kind.inputs) + 3 * elements(kind.outputs[0])  # both norms; add, clamp, root
        return OpCost(flops=2 * steps, vector_flops=vector, bytes_moved=bytes_in_and_out(kind))
    return OpCost(vector_flops=3 * steps, bytes_moved=bytes_in_and_out(kind))  # subtract, power, add


def weight_matmul_work(dtype: str, rows: float, columns: int, depth: int) -> CalibratedWork:
    """A matmul with one weight of `columns` x `depth`; the width decides which table measured it."""
    sizes = {"rows": rows, "columns": columns, "depth": depth}
    if columns <= _NARROWEST_WEIGHT:
        return CalibratedWork(family="narrow_matmul", dtype=dtype, sizes=sizes)
    family = "matmul" if columns <= _WIDEST_WEIGHT else "wide_matmul"
    return CalibratedWork(family=family, dtype=dtype, sizes=sizes)


def linear_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """A matmul, and for a bias one write of the result."""
    inputs, weight = operand(kind, 0, "input", "self"), operand(kind, 1, "weight")
    columns, depth = weight.shape
    yield weight_matmul_work(inputs.dtype, elements(inputs) / depth, columns, depth)
    if len(kind.inputs) > 2:
        yield sized_work("fill", kind.outputs[0])


def addmm_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """A matmul onto which something is added."""
    left, right = kind.inputs[1], kind.inputs[2]
    yield weight_matmul_work(left.dtype, left.shape[0], right.shape[1], left.shape[1])
    yield sized_work("fill", kind.outputs[0])


def matmul_work(kind: OpKind) -> Iterator[CalibratedWork]:
    """A matmul with one matrix, or a batch of matmuls."""
    left, right, result = kind.inputs[0], kind.inputs[1], kind.outputs[0]
    depth = left.shape[-1]
    if len(right.shape) < 3:
        columns = right.shape[-1] if len(right.shape) == 2 else 1
        yield weight_matmul_work(left.dtype, elements(left) / depth, columns, depth)
        return
    rows, columns = (result.shape[-2], result.shape[-1]) if len(left.shape) > 1 else (1, result.shape[-1])
    batch = elements(result) / max(1, rows * columns)
    sizes = {"batch": batch, "rows": rows, "columns": columns, "depth": depth}
    yield CalibratedWork(family="batched_matmul", dtype=left.dtype, sizes=sizes)


_matmul = partial(Op, family=WorkFamily.MATMUL)
_left_first = matmul(0, "self", "input", "inp", "mat1")

OPS = registered(
    {
        "linear": _matmul(
            price=_left_first, calibrated=linear_work, copies_scattered_input=True, is_recorded_whole=True
        ),
        "matmul": _matmul(price=_left_first, calibrated=matmul_work, turned_weight=1, is_recorded_whole=True),
        "mm bmm": _matmul(price=_left_first, calibrated=matmul_work, turned_weight=1),
        "linalg_matmul mv dot vdot inner mkldnn_linear _mixed_dtypes_linear": _matmul(price=_left_first),
        "_int_mm _scaled_mm _scaled_mm_v2 _weight_int8pack_mm": _matmul(price=_left_first),
        "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _dyn_quant_matmul_4bit": _matmul(price=_left_first),
        "_weight_int4pack_mm_with_scales_and_zeros": _matmul(price=_left_first),
        "llm_perf_opt.gemm_4bit": _matmul(price=_left_first),
        "addmm": _matmul(price=matmul_plus_addend(1, "mat1"), calibrated=addmm_work, turned_weight=2),
        "_addmm_activation": _matmul(price=matmul_plus_addend(1, "mat1")),
        "addmv": _matmul(price=matmul_plus_addend(1, "mat")),
        "baddbmm": _matmul(price=matmul_plus_addend(1, "batch1"), turned_weight=2),
        "addbmm": _matmul(price=batch_summed_matmul),
        "_foreach_mm": _matmul(price=matmul_list),
        "linalg_vecdot": _matmul(price=vector_product_along),
        "tensordot": _matmul(price=tensordot),
        "bilinear": _matmul(price=bilinear),
        "einsum": _matmul(price=einsum),
        "affine_grid_generator": Op(price=affine_grid),
        "cdist _cdist_forward _euclidean_dist": Op(price=distance_matrix),
    }
)
