"""Matrix products: one multiply-add per output value and summed index, two FLOPs each.

Every product here follows one rule: `2 * output values * summed length`. It covers batches, broadcasting and vectors:
`matmul` and `linear` cost the same as the `mm` and `bmm` they turn into.
"""

from __future__ import annotations

import math

from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, elements, elements_of, operand
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.callgraph.tensor_formats import tensor_bytes

_EUCLIDEAN_BY_PRODUCT_ABOVE_ROWS = 25  # torch's own threshold between its two ways to compute `cdist`


def product(position: int, *names: str) -> Formula:
    """The formula of a product whose left operand, found by name or position, ends in the summed dimension."""

    def price(kind: OpKind) -> OpCost:
        left = operand(kind, position, *names)
        return _contraction(kind, left.shape[-1] if left.shape else 1)

    return price


def product_plus_addend(position: int, *names: str) -> Formula:
    """A product onto which its first operand is added: `addmm` and its kin."""

    def price(kind: OpKind) -> OpCost:
        cost = _contraction(kind, operand(kind, position, *names).shape[-1])
        return cost + OpCost(vector_flops=elements(kind.outputs[0]))

    return price


def _contraction(kind: OpKind, summed_length: int) -> OpCost:
    output = elements(kind.outputs[0])
    return OpCost(
        flops=2 * output * summed_length,
        vector_flops=output if "bias" in kind.input_names else 0,
        bytes_moved=bytes_in_and_out(kind),
    )


def batch_summed_product(kind: OpKind) -> OpCost:
    """`addbmm` adds up the products of the whole batch: batch and inner dimension are both summed."""
    left = operand(kind, 1, "batch1")
    return _contraction(kind, left.shape[0] * left.shape[-1]) + OpCost(vector_flops=elements(kind.outputs[0]))


def grouped_product(kind: OpKind) -> OpCost:
    """Rows sorted by group, one weight per group: each row meets one weight, and only groups with rows are read.

    Two 2-d operands split the summed dimension between the groups instead, and the output gains a group dimension.
    Rows beyond the last offset are priced too: offsets are values, and a shape is all there is.
    """
    left, right = operand(kind, 0, "self", "input"), operand(kind, 1, "mat2", "weight")
    if len(left.shape) == 2 and len(right.shape) == 2:
        macs = left.shape[0] * left.shape[1] * right.shape[1]
        return OpCost(flops=2 * macs, bytes_moved=bytes_in_and_out(kind))
    cost = _contraction(kind, left.shape[-1])
    return cost + OpCost(bytes_moved=-sum(tensor_bytes(meta) - read_of_stack(kind, meta) for meta in (left, right)))


def read_of_stack(kind: OpKind, operand_meta: TensorMeta) -> int:
    """What a grouped product reads of an operand: all of a matrix, and of a stack the groups that have rows."""
    whole = tensor_bytes(operand_meta)
    if len(operand_meta.shape) != 3:
        return whole
    groups = operand_meta.shape[0]
    return whole * min(groups_used(kind), groups) // max(groups, 1)


def groups_used(kind: OpKind) -> int:
    """How many groups of a grouped product have rows: as recorded, or as many as so many rows can touch at most."""
    left, right = operand(kind, 0, "self", "input"), operand(kind, 1, "mat2", "weight")
    recorded = kind.arguments.get("groups_used")
    rows = left.shape[0] if len(left.shape) == 2 else right.shape[-1]
    return recorded if isinstance(recorded, int) else rows


def product_list(kind: OpKind) -> OpCost:
    """Several products in one op: the left operands come first."""
    lefts = kind.inputs[: len(kind.outputs)]
    macs = sum(elements(out) * left.shape[-1] for left, out in zip(lefts, kind.outputs, strict=True))
    return OpCost(flops=2 * macs, bytes_moved=bytes_in_and_out(kind))


def vector_product_along(kind: OpKind) -> OpCost:
    """`linalg_vecdot` sums along `dim` of its first operand."""
    return _contraction(kind, operand(kind, 0, "x").shape[kind.arguments.get("dim", -1)])


def tensordot(kind: OpKind) -> OpCost:
    """Sums over the paired dimensions; a pair of sizes 1 and n is summed before the product, not in it."""
    left, right = operand(kind, 0, "self"), operand(kind, 1, "other")
    pairs = zip(kind.arguments["dims_self"], kind.arguments["dims_other"], strict=True)
    return _contraction(kind, math.prod(min(left.shape[i], right.shape[j]) for i, j in pairs))


def bilinear(kind: OpKind) -> OpCost:
    """`x1 . W[o] . x2` for each of the outputs o: first x1 times the weight, then the result times x2."""
    weight = operand(kind, 2, "weight")
    left_length, right_length = weight.shape[1:]
    cost = _contraction(kind, right_length)
    return cost + OpCost(flops=2 * elements(kind.outputs[0]) * left_length * right_length)


def affine_grid(kind: OpKind) -> OpCost:
    """Each grid point, in homogeneous coordinates, times the transform of its sample."""
    return _contraction(kind, operand(kind, 0, "theta").shape[-1])


def distance_matrix(kind: OpKind) -> OpCost:
    """Euclidean distances of many points are computed as one matrix product, all others pair by pair."""
    left, right = operand(kind, 0, "x1"), operand(kind, 1, "x2")
    rows = max(left.shape[-2], right.shape[-2])
    steps = elements(kind.outputs[0]) * left.shape[-1]
    if kind.arguments.get("p", 2.0) == 2.0 and rows > _EUCLIDEAN_BY_PRODUCT_ABOVE_ROWS:
        vector = 2 * elements_of(kind.inputs) + 3 * elements(kind.outputs[0])  # both norms; add, clamp, root
        return OpCost(flops=2 * steps, vector_flops=vector, bytes_moved=bytes_in_and_out(kind))
    return OpCost(vector_flops=3 * steps, bytes_moved=bytes_in_and_out(kind))  # subtract, power, add


def _left_first(*packets: str) -> dict[str, Formula]:
    return dict.fromkeys(packets, product(0, "self", "input", "inp", "mat1"))


FORMULAS: dict[str, Formula] = {
    **_left_first("aten.mm", "aten.bmm", "aten.matmul", "aten.linalg_matmul", "aten.mv", "aten.dot", "aten.vdot"),
    **_left_first("aten.inner", "aten.linear", "aten.mkldnn_linear", "aten._mixed_dtypes_linear"),
    **_left_first("aten._int_mm", "aten._scaled_mm", "aten._scaled_mm_v2", "aten._weight_int8pack_mm"),
    **_left_first("aten._weight_int4pack_mm", "aten._weight_int4pack_mm_for_cpu", "aten._dyn_quant_matmul_4bit"),
    **_left_first("aten._weight_int4pack_mm_with_scales_and_zeros"),
    "aten.addmm": product_plus_addend(1, "mat1"),
    "aten._addmm_activation": product_plus_addend(1, "mat1"),
    "aten.addmv": product_plus_addend(1, "mat"),
    "aten.baddbmm": product_plus_addend(1, "batch1"),
    "aten.addbmm": batch_summed_product,
    "aten._grouped_mm": grouped_product,
    "aten._scaled_grouped_mm": grouped_product,
    "aten._scaled_grouped_mm_v2": grouped_product,
    "transformers.grouped_mm_fallback": grouped_product,
    "aten._foreach_mm": product_list,
    "aten.linalg_vecdot": vector_product_along,
    "aten.tensordot": tensordot,
    "aten.bilinear": bilinear,
    "aten.affine_grid_generator": affine_grid,
    "aten.cdist": distance_matrix,
    "aten._cdist_forward": distance_matrix,
    "aten._euclidean_dist": distance_matrix,
}
