"""What a run did, seen from outside: every module call in order, with the tensors that went in and out.

`forward` is wrapped per instance, not hooked, because some models call `child.forward(...)` directly. The same code
watches a real run and a weightless one, so a difference between two observations is a difference between the runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

TensorSpec = tuple[str, tuple[int, ...]]
"""A tensor as two runs can share it: dtype name and shape."""


@dataclass(slots=True)
class ObservedCall:
    """One execution of one module; `outputs` stays `None` when the call raised."""

    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] | None = None


@dataclass(slots=True)
class Observation:
    """Every call in the order of entry, and the tensors of the value the whole run returned."""

    calls: list[ObservedCall] = field(default_factory=list)
    result: tuple[TensorSpec, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The module paths in calling order."""
        return [call.path for call in self.calls]


def observe(
    model: torch.nn.Module,
    invoke: Callable[[], object],
    run: Callable[[Callable[[], object]], object] = lambda invoke: invoke(),
) -> Observation:
    """Call `run(invoke)` and watch `model`; when `run` starts `invoke` again, only the last attempt is kept."""
    seen = Observation()

    def attempt() -> object:
        seen.calls.clear()
        return invoke()

    with ExitStack() as cleanup:
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                _wrap(module, path, seen.calls, cleanup)
        seen.result = specs_in(run(attempt))
    return seen


def _wrap(module: torch.nn.Module, path: str, calls: list[ObservedCall], cleanup: ExitStack) -> None:
    forward = module.forward

    @functools.wraps(forward)
    def observed(*args: Any, **kwargs: Any) -> Any:
        call = ObservedCall(path, specs_in((args, kwargs)))
        calls.append(call)
        value = forward(*args, **kwargs)
        call.outputs = specs_in(value)
        return value

    if "forward" in vars(module):
        cleanup.callback(setattr, module, "forward", forward)
    else:
        cleanup.callback(delattr, module, "forward")
    module.forward = observed


def specs_in(value: object) -> tuple[TensorSpec, ...]:
    """Dtype and shape of every tensor in `value`: nested containers, dataclasses and key-value caches included."""
    return tuple((str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in _tensors(value, set()))


def _tensors(value: object, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        for child in _children(value):
            yield from _tensors(child, seen)


def _children(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif _is_library_record(value):
        yield from list(vars(value).values())


def _is_library_record(value: object) -> bool:
    """Whether `value` holds tensors for the library (a cache, a mask) and is neither a model nor a configuration."""
    kind = type(value)
    return (
        kind.__module__.startswith("transformers.")
        and hasattr(value, "__dict__")
        and not isinstance(value, (torch.nn.Module, type))
        and not kind.__name__.endswith("Config")
    )
