"""FLOPs of matrix work from the shapes of its operands, for ops that a counter saw and has no formula for.

They fill the blind spots of a witness, never its figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from llm_perf_opt.testimony import Family, family_of, operator_name

Shape = Sequence[int]

_CAUSES = {Family.ATTENTION: "fused-attention-uncounted", Family.GROUPED: "grouped-product-uncounted"}
_RECURRENT = ("lstm", "gru", "rnn")
_HARMLESS_NAMESPACES = ("aten.", "prim.", "prims.")


def does_matrix_work(operator: str) -> bool:
    """Whether an op of this name multiplies matrices; a recurrent layer does so inside."""
    is_recurrent = any(word in _RECURRENT for word in operator_name(operator).split("_"))
    return is_recurrent or family_of(operator) is not Family.OTHER


def may_do_matrix_work(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """By its name, or because it is of another namespace and touches float tensors: such an op may do anything."""
    name = str(func)
    if does_matrix_work(name):
        return True
    return not name.startswith(_HARMLESS_NAMESPACES) and any(tensor.is_floating_point() for tensor in tensors)


def cause_of_silence(operator: str) -> str:
    """The name under which the ledger knows that a source has nothing to say of this op."""
    return _CAUSES.get(family_of(operator), "op-without-formula")


def flops_of(operator: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int | None:
    """Two per multiply-add, from the shapes of all tensor arguments in order; None for an op that is not known here."""
    formula = _FORMULAS.get(operator_name(operator))
    if formula is None and family_of(operator) is Family.ATTENTION:
        formula = _attention
    return None if formula is None else formula(inputs, outputs)


def _attention(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Every query against every key, then the weighted sum of values; a causal mask is not halved."""
    query, key, value = inputs[:3]
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _grouped(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    left, right = inputs[:2]
    if len(left) == 2 and len(right) == 2:  # the summed dimension is split between the groups
        return 2 * left[0] * left[1] * right[1]
    return 2 * math.prod(outputs[0]) * left[-1]


def _product(position: int) -> Callable[[Sequence[Shape], Sequence[Shape]], int]:
    def flops(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        return 2 * math.prod(outputs[0]) * inputs[position][-1]

    return flops


def _batch_summed(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return 2 * math.prod(outputs[0]) * inputs[1][0] * inputs[1][-1]


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    return 2 * math.prod(outputs[0]) * math.prod(inputs[1][1:])


def _recurrent(leading: int) -> Callable[[Sequence[Shape], Sequence[Shape]], int]:
    """Every weight matrix meets every step of every sample once; `leading` arguments are no weights."""

    def flops(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        weights = [math.prod(shape) for shape in inputs[leading:] if len(shape) == 2]
        return 2 * math.prod(inputs[0][:-1]) * sum(weights)

    return flops


_FORMULAS: dict[str, Callable[[Sequence[Shape], Sequence[Shape]], int]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear", "mv", "dot", "vdot", "inner", "int_mm"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _product(1)),
    **dict.fromkeys(("grouped_mm", "scaled_grouped_mm", "grouped_mm_fallback"), _grouped),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(
        ("lstm", "gru", "rnn_tanh", "rnn_relu", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent(2)
    ),
    "lstm_cell": _recurrent(3),
    "addbmm": _batch_summed,
}
