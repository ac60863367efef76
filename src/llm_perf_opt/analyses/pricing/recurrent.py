"""Recurrent layers: every weight matrix meets every time step of every sample once.

That one sentence prices stacked, bidirectional and projected layers alike, as each of their matrices is in the list.
"""

from __future__ import annotations

import math

from llm_perf_opt.analyses.pricing.op_cost import Formula, OpCost, bytes_in_and_out, elements_of, operand
from llm_perf_opt.core.callgraph.records import OpKind

_WEIGHT_NAMES = frozenset({"params", "weight", "weight0", "weight1", "w_ih", "w_hh"})
_STEPS_PER_GATE_VALUE = 8  # sums of the two products and two biases, the activation, the update of the state


def recurrent(kind: OpKind) -> OpCost | None:
    """A whole layer stack or a single cell; None without input names, when weights and states look alike."""
    weights = [
        meta
        for meta, name in zip(kind.inputs, kind.input_names, strict=False)
        if name in _WEIGHT_NAMES and len(meta.shape) == 2
    ]
    if not weights:
        return None
    rows = math.prod(operand(kind, 0, "input", "data").shape[:-1])
    gate_values = rows * sum(meta.shape[0] for meta in weights) // 2  # each gate has an input and a recurrent matrix
    return OpCost(
        flops=2 * rows * elements_of(weights),
        vector_flops=_STEPS_PER_GATE_VALUE * gate_values,
        bytes_moved=bytes_in_and_out(kind),
    )


FORMULAS: dict[str, Formula] = dict.fromkeys(
    (
        "aten.lstm",
        "aten.gru",
        "aten.rnn_tanh",
        "aten.rnn_relu",
        "aten.lstm_cell",
        "aten.gru_cell",
        "aten.rnn_tanh_cell",
        "aten.rnn_relu_cell",
        "aten.mkldnn_rnn_layer",
        "aten._cudnn_rnn",
        "aten.miopen_rnn",
    ),
    recurrent,
)
