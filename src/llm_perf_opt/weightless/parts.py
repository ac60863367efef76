"""What a composite op is made of: its primitive ops, so that a price can be had for any composite without a formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.callgraph import OpKind
from llm_perf_opt.weightless.fallbacks import is_composite
from llm_perf_opt.weightless.propagation import meta_arguments, overloads
from llm_perf_opt.weightless.recording import OpRecorder, flat_tensors, is_pointwise, is_view

# Composites that every counter prices as one op: their parts would only make the file larger.
_PRICED_WHOLE = overloads(
    "linear", "matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "layer_norm", "rms_norm",
    "scaled_dot_product_attention", "softmax", "log_softmax", "to", "reshape", "contiguous", "dropout", "embedding",
    "flatten", "type_as", "reshape_as", "group_norm", "batch_norm", "_to_copy", "lstm", "gru", "rnn_tanh", "rnn_relu",
)  # fmt: skip


class _PartCollector(TorchDispatchMode):
    """Decomposes composites and keeps the kind of every primitive op."""

    def __init__(self, recorder: OpRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kinds: list[OpKind] = []
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        if not is_view(func):
            self.kinds.append(self._recorder.kind(func, args, kwargs, list(flat_tensors(output))))
        return output


def composite_parts(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], recorder: OpRecorder
) -> tuple[OpKind, ...]:
    """The primitive ops of a composite; empty for a primitive one, or where the decomposition needs values."""
    if func in _PRICED_WHOLE or is_view(func) or is_pointwise(func) or not is_composite(func):
        return ()
    twins = meta_arguments(args, kwargs)
    collector = _PartCollector(recorder)
    try:
        with collector:
            func(*twins.args, **twins.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return ()
    return tuple(collector.kinds)
