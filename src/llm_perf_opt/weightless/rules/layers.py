"""Layers that are one op: recurrent ones, and the channel check that torch omits for transposed convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.recipes import Fresh, Several
from llm_perf_opt.weightless.rules.registry import shape_rule
from llm_perf_opt.weightless.spec import contiguous_spec


@shape_rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Output [tokens, batch, directions * hidden], and the last states; `batch_first` swaps the first two."""
    sequence, states, _, _, _, _, _, bidirectional, batch_first = args
    is_lstm = func._overloadpacket.__name__ == "lstm"
    hidden = states[0] if is_lstm else states
    tokens, batch = sequence.shape[:2][:: -1 if batch_first else 1]
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    if is_lstm and _is_projected(states):
        width = states[0].shape[-1] * (2 if bidirectional else 1)
    shape = (batch, tokens, width) if batch_first else (tokens, batch, width)
    outputs = [Fresh(contiguous_spec(shape, sequence.dtype)), Fresh(contiguous_spec(hidden.shape, sequence.dtype))]
    if is_lstm:
        outputs.append(Fresh(contiguous_spec(states[1].shape, sequence.dtype)))
    return Several(tuple(outputs), tuple)


def _is_projected(states: Sequence[Any]) -> bool:
    return bool(states[0].shape[-1] != states[1].shape[-1])


@shape_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Refuse what every real kernel refuses; the shapes themselves are left to torch."""
    source, weight = args[0], args[1]
    channels = source.shape[1 - weight.ndim]
    if channels != weight.shape[0]:
        raise RuntimeError(f"transposed convolution: the input has {channels} channels, the weight {weight.shape[0]}")
    return NotImplemented
