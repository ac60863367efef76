"""The comparison that the breadth figures rest on finds every kind of difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.breadth.observed import Observation, ObservedCall, TensorSpec, compare, observe

Tensors = tuple[TensorSpec, ...]

X = (("float32", (2, 3)),)
Y = (("float32", (2, 4)),)
HALF = (("float16", (2, 3)),)


def run_of(*calls: tuple[str, Tensors, Tensors], result: Tensors = X) -> Observation:
    return Observation([ObservedCall(*call) for call in calls], result)


REAL = run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X))


def test_equal_runs_are_exact() -> None:
    held = compare(REAL, run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X)))
    assert held.exact
    assert held.calls_real == 4
    assert held.examples == ()


@pytest.mark.parametrize(
    ("other", "field", "value"),
    [
        (run_of(("", X, X), ("a", X, X), ("b", X, Y)), "calls_unpaired", 1),
        (run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X), ("c", X, X)), "calls_unpaired", 1),
        (run_of(("", X, X), ("a", X, Y), ("b", X, Y), ("b", X, X)), "calls_shape_differs", 1),
        (run_of(("", X, X), ("a", X, X), ("b", X, X), ("b", X, X)), "calls_shape_differs", 1),
        (run_of(("", X, X), ("a", HALF, X), ("b", X, Y), ("b", X, X)), "calls_dtype_differs", 1),
        (run_of(("", X, X), ("b", X, Y), ("a", X, X), ("b", X, X)), "sequence_equal", False),
        (run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X), result=Y), "result_equal", False),
        (run_of(("", X, X), ("a", X, X), ("b", X, Y)), "counts_equal", False),
    ],
)
def test_a_difference_is_found_and_named(other: Observation, field: str, value: object) -> None:
    held = compare(REAL, other)
    assert not held.exact
    assert getattr(held, field) == value


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, state: dict[str, list[torch.Tensor]]) -> tuple[torch.Tensor, None]:
        return x @ state["weights"][0], None


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = self.inner(x, state={"weights": [torch.ones(3, 4)]})
        second, _ = self.inner.forward(x, state={"weights": [torch.ones(3, 4)]})
        return torch.add(first, second)


def test_direct_forward_calls_keywords_and_nested_tensors_are_seen() -> None:
    model = Outer()
    seen = observe(model, lambda: model(torch.ones(2, 3)))
    assert seen.paths == ["", "inner", "inner"]
    assert seen.calls[2].inputs == (("float32", (2, 3)), ("float32", (3, 4)))
    assert seen.calls[2].outputs == seen.result == (("float32", (2, 4)),)
    assert "forward" not in vars(model) | vars(model.inner)


def test_a_second_attempt_replaces_the_first() -> None:
    model = Outer()

    def twice(invoke: Callable[[], object]) -> object:
        invoke()
        return invoke()

    assert observe(model, lambda: model(torch.ones(2, 3)), twice).paths == ["", "inner", "inner"]


def test_what_raised_leaves_no_wrapper() -> None:
    model = Outer()
    with pytest.raises(RuntimeError):
        observe(model, lambda: model(torch.ones(2, 5)))
    assert "forward" not in vars(model) | vars(model.inner)
