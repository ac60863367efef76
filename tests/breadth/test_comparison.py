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
    assert held.examples == []


ONLY_REAL = ("b", "a call only in the real run")
FLOAT, WIDE, SMALL = "(float32[2, 3])", "(float32[2, 4])", "(float16[2, 3])"


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        (run_of(("", X, X), ("a", X, X), ("b", X, Y)), [ONLY_REAL]),
        (
            run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X), ("c", X, X)),
            [("c", "a call only in the weightless run")],
        ),
        (
            run_of(("", X, X), ("a", X, Y), ("b", X, Y), ("b", X, X)),
            [("a", f"real {FLOAT} -> {FLOAT}, weightless {FLOAT} -> {WIDE}")],
        ),
        (
            run_of(("", X, X), ("a", X, X), ("b", X, X), ("b", X, X)),
            [("b", f"real {FLOAT} -> {WIDE}, weightless {FLOAT} -> {FLOAT}")],
        ),
        (
            run_of(("", X, X), ("a", HALF, X), ("b", X, Y), ("b", X, X)),
            [("a", f"real {FLOAT} -> {FLOAT}, weightless {SMALL} -> {FLOAT}")],
        ),
    ],
)
def test_a_call_that_differs_is_found_and_named(other: Observation, differences: list[tuple[str, str]]) -> None:
    held = compare(REAL, other)
    assert not held.exact
    assert list(held.differences) == differences
    assert held.examples == [f"{path}: {text}" for path, text in differences]


def test_another_order_and_another_result_are_found() -> None:
    moved = compare(REAL, run_of(("", X, X), ("b", X, Y), ("a", X, X), ("b", X, X)))
    assert (moved.exact, moved.sequence_equal, moved.result_equal, moved.differences) == (False, False, True, ())
    changed = compare(REAL, run_of(("", X, X), ("a", X, X), ("b", X, Y), ("b", X, X), result=Y))
    assert (changed.exact, changed.sequence_equal, changed.result_equal) == (False, True, False)


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
