"""Shapes and dtypes of model code, real and weightless side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from snippets import SNIPPETS

from llm_perf_opt.weightless import Engine


def outline(value: Any) -> Any:
    """Shapes and dtypes of everything in a result."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if isinstance(value, np.ndarray):
        return ("numpy", value.shape)
    if isinstance(value, (list, tuple)):
        return [outline(item) for item in value]
    return type(value)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SNIPPETS)
def test_same_shapes_real_and_weightless(name: str, device: str) -> None:
    values, ids = inputs()
    with torch.no_grad():
        expected = outline(SNIPPETS[name](values.clone(), ids))
    engine = Engine(device=device)
    got = engine.run(lambda: SNIPPETS[name](engine.ghost(4, 6), ids.clone()))
    assert outline(got) == expected
