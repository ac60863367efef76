"""Every forward is reported with its arguments, also one that is called directly, and the wrapping is taken off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.harness.module_calls import watch_forwards, watch_modules


class Direct(nn.Module):
    """Calls its child's forward without the hooks in between."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(2, 2)

    def forward(self, rows: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.child.forward(rows) * scale


def test_arguments_and_outputs_are_handed_over() -> None:
    model, seen = Direct(), []

    def before(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((path, type(module).__name__, len(args), kwargs))

    def after(path: str, output: Any) -> None:
        seen.append((path, tuple(output.shape)))

    with watch_forwards(model, before, after):
        model(torch.zeros(3, 2), scale=2.0)
    assert seen == [
        ("", "Direct", 1, {"scale": 2.0}),
        ("child", "Linear", 1, {}),
        ("child", (3, 2)),
        ("", (3, 2)),
    ]
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_an_error_closes_every_call_and_names_the_innermost_module() -> None:
    model, left = Direct(), []
    with (
        pytest.raises(RuntimeError) as caught,
        watch_modules(model, lambda path, tensors: None, left.append) as stop,
    ):
        model(torch.zeros(3, 5))
    assert left == [[], []]
    assert stop.of(caught.value) == "child"
    assert all("forward" not in module.__dict__ for module in model.modules())
