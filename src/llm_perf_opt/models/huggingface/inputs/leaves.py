"""What an input plan is made of: descriptions of tensors, turned into tensors only when the model is about to run.

A description costs nothing to keep, can be written to a report, and becomes a real tensor or a ghost depending on
where `make_inputs` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Leaf = object  # one of the classes below, a plain Python value, or a list, tuple or dict of leaves
Plan = Mapping[str, Leaf]


@dataclass(frozen=True, slots=True)
class Noise:
    """Floats between 0 and 1, in the dtype of the model: pixels, samples, features, embeddings."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """One value everywhere; `dtype` is torch's name, so a mask is `Filled((1, 8), 1, "int64")`."""

    shape: tuple[int, ...]
    value: float
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Whole:
    """Given integers, flat, and the shape they are laid out in."""

    values: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of placeholder tokens that the model replaces by features; `before` and `after` frame it."""

    kind: str  # "image" | "audio" | "video"
    token: int
    count: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def ids(self) -> list[int]:
        """The token ids of the stretch with its frame."""
        return [*self.before, *[self.token] * self.count, *self.after]


@dataclass(frozen=True, slots=True)
class Built:
    """An object that a model takes instead of tensors: `factory` is called with the arguments made into tensors."""

    factory: Callable[..., object]
    arguments: Mapping[str, Leaf]


def whole(rows: object, dtype: str = "int64") -> Whole:
    """Nested lists of integers as a leaf: `whole([[1, 4, 4]])` has shape (1, 3)."""
    tensor = torch.tensor(rows, dtype=torch.int64)
    return Whole(tuple(tensor.flatten().tolist()), tuple(tensor.shape), dtype)


def ones(*shape: int) -> Filled:
    """A mask that hides nothing."""
    return Filled(shape, 1)


def make_inputs(plan: Plan, dtype: torch.dtype = torch.float32) -> dict[str, object]:
    """Keyword arguments for one forward, with floats in `dtype`."""
    return {name: _make(leaf, dtype) for name, leaf in plan.items()}


def _make(leaf: Leaf, dtype: torch.dtype) -> object:
    match leaf:
        case Noise(shape=shape):
            return torch.rand(shape, dtype=dtype)
        case Filled(shape=shape, value=value, dtype=name):
            return torch.full(shape, value, dtype=getattr(torch, name))
        case Whole(values=values, shape=shape, dtype=name):
            return torch.tensor(values, dtype=getattr(torch, name)).reshape(shape)
        case Built(factory=factory, arguments=arguments):
            return factory(**make_inputs(arguments, dtype))
        case list() | tuple():
            return type(leaf)(_make(item, dtype) for item in leaf)
        case dict():
            return {key: _make(item, dtype) for key, item in leaf.items()}
        case _:
            return leaf
