"""Seeing every op that reaches the engine, from right above it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.execution.nested_tensors import tensors_in

OnOp = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]  # op, arguments, keyword arguments, output
Signature = tuple[str, tuple[Any, ...]]


class OpWatch(TorchDispatchMode):
    """Tells of each op after it ran. A mode entered later, such as a FLOP counter, comes first and may split ops up."""

    supports_higher_order_operators = True

    def __init__(self, on_op: OnOp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_op = on_op

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would load torch's compiler, which takes longer than most runs

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the op, then tell."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One op; a watch of another kind changes this alone."""
        output = func(*args, **kwargs)
        self.on_op(func, args, kwargs, output)
        return output


def signature(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> Signature:
    """The op and the shapes it ran on: what its cost depends on."""
    tensors = (*tensors_in(list(args)), *tensors_in(dict(kwargs)), *tensors_in(output))
    return str(func), tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
