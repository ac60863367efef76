"""What a model keeps between runs: found in attributes and buffers, and not where there is nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llm_perf_opt.harness.phase_runs import is_same_state, state_of


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("scale", torch.ones(2))
        self.last = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Counting(Forgetful):
    def forward(self, x: Tensor) -> Tensor:
        self.last = len(x)
        return super().forward(x)


class Rescaling(Forgetful):
    def forward(self, x: Tensor) -> Tensor:
        self.scale = torch.ones(2)
        return super().forward(x)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def is_same_after(model: nn.Module, *sizes: int) -> bool:
    states = []
    for size in sizes:
        model(torch.zeros(size, 2))
        states.append(state_of(model))
    return is_same_state(*states)


def test_a_model_that_writes_nothing_down_is_the_same() -> None:
    assert is_same_after(Outer(Forgetful()), 2, 3)


def test_a_number_or_a_buffer_that_a_run_leaves_is_state() -> None:
    assert not is_same_after(Outer(Counting()), 2, 3)
    assert is_same_after(Outer(Counting()), 2, 2)
    assert not is_same_after(Outer(Rescaling()), 2, 3)


def test_a_new_attribute_is_state() -> None:
    model = Forgetful()
    before = state_of(model)
    model.seen = torch.zeros(1)
    assert not is_same_state(before, state_of(model))
