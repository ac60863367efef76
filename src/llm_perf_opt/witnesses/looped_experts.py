"""Experts one after the other instead of all in one grouped product: the plain products that any counter knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SWITCH, _LOOP = "_experts_implementation", "eager"  # of transformers, from version 5 on


def has_grouped_experts(module: torch.nn.Module) -> bool:
    """Whether the model offers a loop over its experts and was told to use something else."""
    return bool(_switched(module))


@contextmanager
def looped_experts(module: torch.nn.Module) -> Iterator[None]:
    """Run what is inside with every expert called by itself; on every way out the model is told what it was before."""
    before = [(config, getattr(config, _SWITCH)) for config in _switched(module)]
    try:
        for config, _ in before:
            setattr(config, _SWITCH, _LOOP)
        yield
    finally:
        for config, chosen in before:
            setattr(config, _SWITCH, chosen)


def _switched(module: torch.nn.Module) -> list[Any]:
    """The configurations below a module that choose how experts run, each once."""
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, _SWITCH, None) not in (None, _LOOP)]
