"""Guesses that made the model raise: revised and said so, and never a cover for real errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import llm_perf_opt as lpo


class Model(nn.Module):
    def __init__(self, error: Exception, *, is_guess: bool) -> None:
        super().__init__()
        self.error, self.is_guess, self.calls = error, is_guess, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        is_small = x.max() < 3  # answered False at first
        if self.is_guess and not is_small:
            raise self.error
        if not self.is_guess and self.calls == 1:
            raise self.error  # whatever was guessed: a second run would not raise it
        return x * 2


def traced(model: nn.Module) -> lpo.Trace:
    return lpo.trace(model, (torch.zeros(4),))


@pytest.mark.parametrize("error", [ValueError("too large"), RuntimeError("bad"), IndexError("out of range")])
def test_a_guess_that_the_model_refuses_is_revised_and_said(error: Exception) -> None:
    graph = traced(Model(error, is_guess=True)).graphs[0]
    assert any(f"revised after {type(error).__name__}" in answer.policy for answer in graph.oracle_answers)
    assert any(note.startswith("A guess was revised") for note in graph.notes)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("full"),
        torch.OutOfMemoryError("full"),
        RecursionError("too deep"),
        OSError("gone"),
        AssertionError("of the model"),
        ImportError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_no_guess_is_raised_at_once(error: Exception) -> None:
    model = Model(error, is_guess=False)
    with pytest.raises(Exception, match=str(error)):
        traced(model)


def test_an_assertion_on_the_guess_itself_is_revised() -> None:
    class Asserts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.max() < 3
            return x + 1

    graph = traced(Asserts()).graphs[0]
    assert any("revised after AssertionError" in answer.policy for answer in graph.oracle_answers)


def test_a_run_without_revision_says_nothing() -> None:
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.max() < 3 else x + 1

    graph = traced(Plain()).graphs[0]
    assert not any("revised" in answer.policy for answer in graph.oracle_answers)
    assert graph.notes == ()
