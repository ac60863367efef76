"""Factorisations and solvers, by the textbook counts for a direct method.

They are counted as vector FLOPs: the field's convention for matrix FLOPs covers products, convolutions and attention.
Eigenvalues and singular values iterate until the values converge, so no count from shapes exists and none is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, operand
from llm_perf_opt.core.callgraph.records import OpKind


def factorisation(count: Callable[[int, int], int]) -> Formula:
    """The formula of an op on a batch of matrices, from the count for one matrix of `rows` and `columns`."""

    def price(kind: OpKind) -> OpCost:
        *batch, rows, columns = kind.inputs[0].shape
        return OpCost(vector_flops=math.prod(batch) * count(rows, columns), bytes_moved=bytes_in_and_out(kind))

    return price


def triangular_solve(kind: OpKind) -> OpCost:
    """`size^2` FLOPs for each right-hand side."""
    return _per_column(kind, operand(kind, 0, "A", "self").shape[-1], 1)


def factored_solve(kind: OpKind) -> OpCost:
    """Two triangular solves from a factorisation at hand."""
    return _per_column(kind, kind.outputs[0].shape[-2], 2)


def solve(kind: OpKind) -> OpCost:
    """An LU factorisation of the matrix, then two triangular solves."""
    *batch, size, _ = operand(kind, 0, "A").shape
    return _per_column(kind, size, 2) + OpCost(vector_flops=math.prod(batch) * _lu(size, size))


def _per_column(kind: OpKind, size: int, solves: int) -> OpCost:
    return OpCost(
        vector_flops=solves * math.prod(kind.outputs[0].shape) * size,
        bytes_moved=bytes_in_and_out(kind),
    )


def _lu(rows: int, columns: int) -> int:
    small, large = sorted((rows, columns))
    return small * small * (3 * large - small) // 3  # 2/3 n^3 for a square matrix


def _cholesky(rows: int, columns: int) -> int:
    return rows * columns * columns // 3


def _inverse(rows: int, columns: int) -> int:
    return 2 * rows * columns * columns


def _qr(rows: int, columns: int) -> int:
    small, large = sorted((rows, columns))
    return 2 * small * small * (3 * large - small) // 3


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten.linalg_cholesky", "aten.linalg_cholesky_ex", "aten.cholesky"), factorisation(_cholesky)),
    **dict.fromkeys(("aten.linalg_inv", "aten.linalg_inv_ex", "aten.inverse"), factorisation(_inverse)),
    **dict.fromkeys(("aten.linalg_qr", "aten.geqrf", "aten.qr"), factorisation(_qr)),
    **dict.fromkeys(
        (
            "aten.linalg_lu",
            "aten.linalg_lu_factor",
            "aten.linalg_lu_factor_ex",
            "aten._lu_with_info",
            "aten.linalg_det",
            "aten._linalg_det",
            "aten.det",
            "aten.logdet",
            "aten.linalg_slogdet",
            "aten._linalg_slogdet",
            "aten.slogdet",
        ),
        factorisation(_lu),
    ),
    "aten.linalg_solve_triangular": triangular_solve,
    "aten.linalg_lu_solve": factored_solve,
    "aten.lu_solve": factored_solve,
    "aten.cholesky_solve": factored_solve,
    "aten.linalg_solve": solve,
    "aten.linalg_solve_ex": solve,
    "aten._linalg_solve_ex": solve,
}
