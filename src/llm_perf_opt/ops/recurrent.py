"""Recurrent layers: every weight matrix meets every time step of every sample once.

That one sentence prices stacked, bidirectional and projected layers alike, as each of their matrices is in the list.
"""

from __future__ import annotations

import math
from functools import partial

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out, elements_of, operand
from llm_perf_opt.ops.op import Op, registered

_WEIGHT_NAMES = frozenset({"params", "weight", "weight0", "weight1", "w_ih", "w_hh"})
_STEPS_PER_GATE_VALUE = 8  # sums of the two matmuls and two biases, the activation, the update of the state


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


_recurrent = partial(Op, price=recurrent)

OPS = registered(
    {
        # Torch would unroll these step by step, where a real kernel runs all steps at once.
        "lstm gru rnn_tanh rnn_relu": _recurrent(is_recorded_whole=True, has_scratch=False),
        "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell mkldnn_rnn_layer _cudnn_rnn miopen_rnn": _recurrent(),
    }
)
