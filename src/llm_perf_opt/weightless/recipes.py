"""How to make the outputs of an op again from its arguments: what a cache entry holds.

A recipe is built once, when an op is first seen with these specs, and followed at every later hit. It mentions
arguments by position, never by value, so that it holds for every call with an equal key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.weightless.ghost import Ghost, new_ghost, uniform_ghost
from llm_perf_opt.weightless.oracle import Oracle
from llm_perf_opt.weightless.spec import Spec
from llm_perf_opt.weightless.storage import Uniform

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]
ArgumentPath = tuple[int | str, ...]  # (1,) second positional; ("out",) keyword; (0, 2) third of a list


def argument_at(path: ArgumentPath, args: Arguments, kwargs: Keywords) -> Any:
    """The argument a recipe refers to."""
    first = path[0]
    value = kwargs[first] if isinstance(first, str) else args[first]
    for index in path[1:]:
        value = value[index]
    return value


@dataclass(frozen=True, slots=True)
class Fresh:
    """A ghost with memory of its own."""

    spec: Spec

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Ghost:
        return new_ghost(self.spec)


@dataclass(frozen=True, slots=True)
class SameAs:
    """The argument itself: in-place ops, and conversions that convert nothing."""

    path: ArgumentPath

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Any:
        return argument_at(self.path, args, kwargs)


@dataclass(frozen=True, slots=True)
class GhostView:
    """A ghost on the memory of a ghost argument."""

    spec: Spec
    path: ArgumentPath

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Ghost:
        return new_ghost(self.spec, argument_at(self.path, args, kwargs).memory)


@dataclass(frozen=True, slots=True)
class CopyOf:
    """A ghost with memory of its own and the values of a ghost argument: what is known of them goes along."""

    spec: Spec
    path: ArgumentPath

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Ghost:
        return uniform_ghost(self.spec, argument_at(self.path, args, kwargs).memory.uniform)


@dataclass(frozen=True, slots=True)
class RealView:
    """A view of a real argument, which stays real: `mask.expand_as(ghost)` must keep its values."""

    path: ArgumentPath
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> torch.Tensor:
        base = argument_at(self.path, args, kwargs)
        return torch.as_strided(base, self.shape, self.stride, base.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Answered:
    """Integers or booleans derived from ghost floats: a real tensor of oracle values."""

    spec: Spec
    func: Any

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> torch.Tensor:
        return oracle.values(self.spec, self.func)


@dataclass(frozen=True, slots=True)
class UniformMask:
    """A comparison too large to hold, usually read by `where` alone: a ghost that knows if it is uniform."""

    spec: Spec
    uniform: Uniform

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Ghost:
        return uniform_ghost(self.spec, self.uniform)


@dataclass(frozen=True, slots=True)
class Constant:
    """An output that is no tensor."""

    value: Any

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Several:
    """Several outputs, in the container the op returns (list, tuple or a named result such as `torch.max`'s)."""

    parts: tuple[Recipe, ...]
    container: Callable[[list[Any]], Any]

    def follow(self, oracle: Oracle, args: Arguments, kwargs: Keywords) -> Any:
        return self.container([part.follow(oracle, args, kwargs) for part in self.parts])


Recipe = Fresh | SameAs | GhostView | CopyOf | RealView | Answered | UniformMask | Constant | Several
