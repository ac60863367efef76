"""How a tiny model is written down: a class, a small configuration, and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Input = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """One model class of transformers at a size that runs in a fraction of a second for real.

    `experts` chooses the library's way of running a mixture of experts: `eager` is a Python loop over the experts.
    `routed` marks models in which that routing decides how often, or with how many rows, a module is called.
    """

    model: str
    config: str
    family: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Input]
    experts: str | None = None
    routed: bool = False

    def build(self) -> torch.nn.Module:
        """A fresh model, in evaluation mode."""
        import transformers

        config = getattr(transformers, self.config)(**self.sizes)
        if self.experts is not None:
            config._experts_implementation = self.experts
        model: torch.nn.Module = getattr(transformers, self.model)(config)
        return model.eval()

    def make_inputs(self) -> dict[str, Any]:
        """Fresh inputs; the same seed gives the same ones."""
        torch.manual_seed(0)
        return {name: make() for name, make in self.inputs.items()}


def ids(*shape: int, low: int = 5, high: int = 64) -> Input:
    """Random token ids, above the special ones."""
    return lambda: torch.randint(low, high, shape)


def floats(*shape: int) -> Input:
    """Random float input: pixels, samples, features."""
    return lambda: torch.randn(*shape)


def ones(*shape: int) -> Input:
    """A mask that hides nothing."""
    return lambda: torch.ones(*shape, dtype=torch.long)


def given(*values: Any) -> Input:
    """Exactly these integers."""
    return lambda: torch.tensor(values)


def with_placeholders(length: int, token: int, count: int, *, rows: int = 1) -> Input:
    """Token ids of which `count` in a row, after the first, are the placeholder of an image or a sound."""

    def make() -> torch.Tensor:
        tokens = torch.randint(5, 50, (rows, length))
        tokens[:, 1 : 1 + count] = token
        return tokens

    return make
