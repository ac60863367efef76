"""Ctrl-C while model code enters or leaves a mode of torch: the mode is as before, and the interrupt is not lost."""

from __future__ import annotations

import contextlib
import pkgutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import llm_perf_opt as lpo


class Modes(nn.Module):
    """Enters two modes of torch, one inside the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(x.device.type, dtype=torch.bfloat16):
            x = self.layer(x)[None]
            return nn.functional.scaled_dot_product_attention(x, x, x)


PUSH = "torch.utils._python_dispatch._push_on_torch_dispatch_stack"
STEPS = ("set_autocast_enabled", "set_autocast_dtype", "autocast_increment_nesting", "autocast_decrement_nesting")


def interrupted_at(step: str, call: int, tracer: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Trace, press Ctrl-C when that function of torch returns for the n-th time, and say whether it came to that."""
    place, _, name = step.rpartition(".")
    owner = pkgutil.resolve_name(place)
    real: Callable[..., Any] = getattr(owner, name)
    calls = []

    def pressing(*arguments: Any) -> Any:
        found = real(*arguments)
        calls.append(step)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return found

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, pressing)
            with contextlib.suppress(KeyboardInterrupt):
                lpo.trace(Modes(), (torch.zeros(1, 4),), tracer=tracer)
                assert len(calls) < call, "the interrupt was lost"
    finally:
        signal.signal(signal.SIGINT, before)
    return len(calls) >= call


def require_plain() -> None:
    assert _get_current_dispatch_mode_stack() == []
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("tracer", ["weightless", "hooks"])
@pytest.mark.parametrize("step", STEPS)
def test_a_mode_that_is_half_entered_is_left(monkeypatch: pytest.MonkeyPatch, tracer: str, step: str) -> None:
    assert interrupted_at(f"torch.{step}", 1, tracer, monkeypatch)
    require_plain()


def test_a_dispatch_mode_that_was_just_pushed_is_popped(monkeypatch: pytest.MonkeyPatch) -> None:
    call = 1
    while interrupted_at(PUSH, call, "weightless", monkeypatch):
        require_plain()
        call += 1
    assert call > 4  # the engine, to build and to run, and the modes under which composite ops are taken apart


def test_an_engine_that_is_just_entered_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    call = 1
    while interrupted_at("contextlib.ExitStack.pop_all", call, "weightless", monkeypatch):
        require_plain()
        call += 1
    assert call > 2
