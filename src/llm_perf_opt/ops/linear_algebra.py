"""Factorisations and solvers, by the textbook counts for a direct method.

They are counted as vector FLOPs: the field's convention for matrix FLOPs covers matmuls, convolutions and attention.
Eigenvalues and singular values iterate until the values converge, so no count from shapes exists and none is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import Formula, OpCost, bytes_in_and_out, operand
from llm_perf_opt.ops.op import Op, registered


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
    """Two triangular solves from a given factorisation."""
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


OPS = registered(
    {
        "linalg_cholesky linalg_cholesky_ex cholesky": Op(price=factorisation(_cholesky)),
        "linalg_inv linalg_inv_ex inverse": Op(price=factorisation(_inverse)),
        "linalg_qr geqrf qr": Op(price=factorisation(_qr)),
        "linalg_lu linalg_lu_factor linalg_lu_factor_ex _lu_with_info": Op(price=factorisation(_lu)),
        "linalg_det _linalg_det det logdet linalg_slogdet _linalg_slogdet slogdet": Op(price=factorisation(_lu)),
        "linalg_solve_triangular": Op(price=triangular_solve),
        "linalg_lu_solve lu_solve cholesky_solve": Op(price=factored_solve),
        "linalg_solve linalg_solve_ex _linalg_solve_ex": Op(price=solve),
    }
)
