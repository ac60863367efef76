"""The pieces of any model that are worth a static graph: one of each kind of repeated block, and the whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from llm_perf_opt.plugins import Part


def guess_parts(model: torch.nn.Module) -> tuple[Part, ...]:
    """The first of each kind of block in a list of blocks, outermost lists only, then the whole model.

    Two blocks are of one kind if their class and the shapes of their weights are the same.
    """
    blocks = tuple(Part(name=path, path=path, title=type(block).__name__) for path, block in _first_blocks(model))
    whole = Part(name="full-model", path="", title=type(model).__name__, instead=tuple(part.name for part in blocks))
    return (*blocks, whole)


def _first_blocks(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    lists: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList) or any(path.startswith(f"{outer}.") for outer in lists):
            continue
        lists.append(path)
        for name, block in module.named_children():
            kind = (type(block), *(tuple(parameter.shape) for parameter in block.parameters()))
            if kind not in seen:
                seen.add(kind)
                yield f"{path}.{name}", block
