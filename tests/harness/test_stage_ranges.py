"""Ranges around stages and modules: they pair up on every way out, and nothing stays on the model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from llm_perf_opt.core.target import Stage
from llm_perf_opt.harness import stage_ranges
from llm_perf_opt.harness.stage_ranges import NamedRanges, WatchedByAll, modules_named, stages_watched


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            raise ValueError("nothing to do")
        return x + 1


class Outer(torch.nn.Module):
    """Calls its child once as a module, and once past the hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.forward(self.inner(x))


STAGES = (Stage(name="work", paths=("inner",)),)


class Log:
    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines = name, lines

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.lines.append(f"{self.name}+{name}")
        try:
            yield
        finally:
            self.lines.append(f"{self.name}-{name}")


def test_a_stage_is_told_also_where_forward_is_called_directly() -> None:
    lines: list[str] = []
    model = Outer()
    with stages_watched(model, STAGES, WatchedByAll(Log("a", lines), Log("b", lines))):
        model(torch.zeros(1))
    assert lines == ["a+work", "b+work", "b-work", "a-work"] * 2
    model(torch.zeros(1))
    assert len(lines) == 8
    assert "forward" not in vars(model.inner)


def test_a_call_in_another_thread_is_no_stage_of_this_one() -> None:
    lines: list[str] = []
    model = Outer()
    with stages_watched(model, STAGES, Log("a", lines)), ThreadPoolExecutor(1) as pool:
        assert pool.submit(model, torch.zeros(1)).result() == 2
        assert lines == []
        model(torch.zeros(1))
    assert lines == ["a+work", "a-work"] * 2


def test_a_model_that_raises_ends_its_stages() -> None:
    lines: list[str] = []
    model = Outer()
    with pytest.raises(ValueError, match="nothing to do"), stages_watched(model, STAGES, Log("a", lines)):
        model(torch.zeros(0))
    assert lines == ["a+work", "a-work"]
    assert "forward" not in vars(model.inner)


@pytest.mark.parametrize("size", [1, 0], ids=["runs", "raises"])
def test_on_cuda_every_range_that_is_pushed_is_popped(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stack: list[str] = []
    seen: list[str] = []

    def push(text: str) -> None:
        stack.append(text)
        seen.append("/".join(stack))

    monkeypatch.setattr(stage_ranges, "_has_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", stack.pop)
    model = Outer()
    try:
        with modules_named(model), NamedRanges().stage("all"):
            model(torch.zeros(size))
    except ValueError:
        assert size == 0
    assert stack == []
    inner = ["stage: all/module: (root)/module: inner"] * (2 if size else 1)
    assert seen == ["stage: all", "stage: all/module: (root)", *inner]
