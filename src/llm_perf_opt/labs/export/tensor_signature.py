"""A call as a function of tensors alone: what an exporter takes instead of lists, keyword arguments and caches."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from llm_perf_opt.harness.tensors import distinct_tensors, is_cache, tensors_in, with_tensors


class TensorsOnly(torch.nn.Module):
    """A module with the arguments of one call; every tensor in them is an input, everything else stays as it was.

    The outputs are the tensors in what the module returns, then those that it put into a cache among its arguments.
    Arguments are rebuilt for each call, so a cache is never written to twice.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.arguments = (args, kwargs)
        self.given = distinct_tensors(self.arguments)
        self.idle: list[torch.Tensor] = []

    def leave_out(self, places: Collection[int]) -> None:
        """These inputs have no influence: they stay in the arguments and are neither inputs nor outputs."""
        self.idle += [tensor for place, tensor in enumerate(self.given) if place in places]
        self.given = [tensor for place, tensor in enumerate(self.given) if place not in places]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the call on other tensors of the same meaning."""
        args, kwargs = self.rebuilt(tensors)
        idle = set(map(id, self.idle))
        outputs = [tensor for tensor in tensors_in(self.module(*args, **kwargs)) if id(tensor) not in idle]
        known = {id(tensor) for tensor in (*tensors, *outputs)} | idle
        return (*outputs, *(tensor for tensor in tensors_in((args, kwargs)) if id(tensor) not in known))

    def rebuilt(self, tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with `tensors` in the places of those that were given."""
        kept = ((tensor, tensor) for tensor in self.idle)
        return with_tensors(self.arguments, (*zip(self.given, tensors, strict=True), *kept))


def input_names(call: TensorsOnly) -> list[str]:
    """`hidden_states`, or `past_key_value.0` where an argument holds several tensors; one per input, in order."""
    args, kwargs = call.arguments
    bound = inspect.signature(call.module.forward).bind(*args, **kwargs).arguments
    names: dict[int, str] = {}
    for name, value in bound.items():
        found = tensors_in(value)
        for place, tensor in enumerate(found):
            names.setdefault(id(tensor), name if isinstance(value, torch.Tensor) else f"{name}.{place}")
    return [names[id(tensor)] for tensor in call.given]


def cached_tensors(call: TensorsOnly) -> list[int]:
    """Which of the inputs come out of a cache."""
    args, kwargs = call.arguments
    held = {id(tensor) for value in (*args, *kwargs.values()) if is_cache(value) for tensor in tensors_in(value)}
    return [place for place, tensor in enumerate(call.given) if id(tensor) in held]


def signature_adaptations(call: TensorsOnly) -> tuple[str, ...]:
    """What had to be changed in the arguments, in words."""
    args, kwargs = call.arguments
    values = (*args, *kwargs.values())
    caches = dict.fromkeys(type(value).__name__ for value in values if is_cache(value))
    told = [f"{name} as key and value tensors, in and out" for name in caches]
    if any(isinstance(value, (list, tuple, dict)) and tensors_in(value) for value in values):
        told.append("lists and tuples as separate tensors")
    if any(not tensors_in(value) and not is_cache(value) for value in values):
        told.append("arguments that are no tensors as constants")
    return tuple(told)


@contextmanager
def autocast_knows_meta() -> Iterator[None]:
    """Regions of `torch.autocast` for the meta device are taken as those of the CPU; as before afterwards."""
    original = torch.autocast.__init__

    def initialise(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = initialise  # type: ignore[method-assign]  # a patch, taken off below
    try:
        yield
    finally:
        torch.autocast.__init__ = original  # type: ignore[method-assign]  # what it was
