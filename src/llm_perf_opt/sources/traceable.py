"""What `torch.jit.trace` needs, a module of tensors only, and the ops that it does not write down.

Ghosts can be traced: the tracer writes an op down before it reaches the engine. It skips `conv2d` and the like,
expecting the `_convolution` inside, which no engine ever calls; here they are called by that name from the start.

The tracer stops listening while a recorded op runs. So an op that arrives while it still listens was not recorded, and
the engine has to work on it without being traced itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.isolation import IsolatedCall
from llm_perf_opt.harness.module_calls import watch_forwards
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.harness.trace_header import observing
from llm_perf_opt.harness.twins import distinct_tensors, tensors_in, with_tensors
from llm_perf_opt.weightless import Ghost


class OnTensors(torch.nn.Module):
    """A module with one call's arguments, as a function of the tensors among them."""

    def __init__(self, call: IsolatedCall) -> None:
        super().__init__()
        self.module = call.module
        self._arguments = (call.args, call.kwargs)
        self.tensors = tuple(distinct_tensors(self._arguments))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in what the module returns; a cache among the arguments is a new one in each call."""
        args, kwargs = with_tensors(self._arguments, zip(self.tensors, tensors, strict=True))
        return _returnable(tensors_in(self.module(*args, **kwargs)))


class OnePhase(torch.nn.Module):
    """A phase of a model as one module: a function of the tensors that the phase begins with.

    The tracer drops whatever nothing returned depends on, such as the logits of a decode that gives back its cache. So
    the outputs of all modules are returned too, or of real tensors those of the model alone: they would fill memory.
    """

    def __init__(self, target: Target, model: torch.nn.Module, given: object, *, keeps_all: bool) -> None:
        super().__init__()
        self.model = model
        self._target, self._given, self._keeps_all = target, (given,), keeps_all
        self.tensors = tuple(distinct_tensors(self._given)) or (torch.zeros(()),)  # a trace needs one at least

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors that the phase and its modules return."""
        (given,) = with_tensors(self._given, zip(self.tensors, tensors, strict=True))
        kept: list[torch.Tensor] = []

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            pass

        def after(path: str, output: Any) -> None:
            if self._keeps_all or not path:
                kept.extend(tensor for tensor in tensors_in(output) if tensor.is_floating_point())

        with observing(self._target, self.model), watch_forwards(self.model, before, after):
            kept.extend(tensors_in(self._target.run(self.model, given)))
        return _returnable({id(tensor): tensor for tensor in kept}.values())


def _returnable(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tracer refuses to return a real tensor that it has not seen being made; it sees the copy."""
    return tuple(tensor if isinstance(tensor, Ghost) else tensor.clone() for tensor in tensors)


class RecordedConvolutions(TorchFunctionMode):
    """Calls `torch._convolution` for every convolution with numeric padding."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Everything else passes unchanged."""
        kwargs = kwargs or {}
        convolve = _CONVOLUTIONS.get(func)
        if convolve is None or any(isinstance(value, str) for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        return convolve(*args, **kwargs)


def _plain(dimensions: int) -> Callable[..., torch.Tensor]:
    def convolve(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> torch.Tensor:
        sizes = [_per_dimension(value, dimensions) for value in (stride, padding, dilation)]
        return _convolution(input, weight, bias, *sizes, False, [0] * dimensions, groups)

    return convolve


def _transposed(dimensions: int) -> Callable[..., torch.Tensor]:
    def convolve(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> torch.Tensor:
        sizes = [_per_dimension(value, dimensions) for value in (stride, padding, dilation)]
        return _convolution(input, weight, bias, *sizes, True, _per_dimension(output_padding, dimensions), groups)

    return convolve


def _convolution(*arguments: Any) -> torch.Tensor:
    benchmark, deterministic, cudnn_enabled, allow_tf32 = False, False, True, True
    convolve: Callable[..., torch.Tensor] = torch._convolution
    return convolve(*arguments, benchmark, deterministic, cudnn_enabled, allow_tf32)


def _per_dimension(value: Any, dimensions: int) -> list[int]:
    sizes = [int(value)] if isinstance(value, (int, torch.Tensor)) else [int(size) for size in value]
    return sizes * dimensions if len(sizes) == 1 else sizes


_CONVOLUTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    F.conv1d: _plain(1),
    F.conv2d: _plain(2),
    F.conv3d: _plain(3),
    F.conv_transpose1d: _transposed(1),
    F.conv_transpose2d: _transposed(2),
    F.conv_transpose3d: _transposed(3),
}


class UnrecordedOps(OpWatch):
    """Tells of every op that is missing from the trace, and runs it unseen."""

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the op; tell of it where the tracer does not know it."""
        state: Any = torch._C._get_tracing_state()
        if state is None:
            return func(*args, **kwargs)
        _set_tracing_state(None)
        try:
            output = func(*args, **kwargs)
            self.on_op(func, args, kwargs, output)
        finally:
            _set_tracing_state(state)
        return tree_map_only(Ghost, _known_to_the_tracer, output)


def _known_to_the_tracer(ghost: Ghost) -> torch.Tensor:
    """A fresh ghost that the tracer saw being made: one that came from nowhere it takes for a constant, and reads."""
    with _tracer_listening():
        return torch.empty(tuple(ghost.shape), dtype=ghost.dtype)


def _set_tracing_state(state: Any) -> None:
    with _tracer_listening():
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def _tracer_listening() -> AbstractContextManager[object]:
    """Inside a dispatched op the tracer's key is excluded, so that its state may not change; this lifts that."""
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C._dispatch_key_parse("Tracer"))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
