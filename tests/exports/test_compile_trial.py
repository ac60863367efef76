"""Graph breaks are counted and located, and eager and compiled times stand side by side."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from llm_perf_opt.core.export_outcome import Check, CheckOutcome, Verdict
from llm_perf_opt.core.target import Part
from llm_perf_opt.exports.part_under_test import PartUnderTest, TensorsOnly
from llm_perf_opt.exports.torch_lab import _empty_cache, _remarks, _without_compiler, compile_part


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum().item() > 0:
            x = x + 1
        return x * 3


def subject(module: nn.Module, *args: Any) -> PartUnderTest:
    part = Part(name="part", path="part")
    return PartUnderTest(part=part, call=TensorsOnly(module, args, {}), names=("x",), adaptations=())


class Clock:
    """Every call of a module takes as long as it says, on a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def module(self, *seconds: float) -> nn.Module:
        module, left = nn.Module(), list(seconds)

        def forward(x: torch.Tensor) -> torch.Tensor:
            self.now += left.pop(0)
            return x

        module.forward = forward
        return module


def test_compile_time_is_what_the_first_call_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    eager = clock.module(50, 4, 4, 8)  # to warm up, then three runs, the last on a busy machine
    compiled = clock.module(103, 60, 2, 3, 6)  # compiles, warms up, then the same three
    explained = SimpleNamespace(graph_count=1, break_reasons=[])
    monkeypatch.setattr(torch._dynamo, "explain", lambda module: lambda *args, **kwargs: explained)
    monkeypatch.setattr(torch, "compile", lambda module, **_: compiled if isinstance(module, nn.Module) else module)
    _, (trial,) = compile_part(subject(eager, torch.ones(4)), runs=3)
    figures = trial.figures
    assert figures is not None
    assert figures.compile_seconds == 103 - 3
    assert (figures.eager_seconds, figures.compiled_seconds) == (4, 3)
    assert figures.compiled_of_eager == 0.75  # of 2/4, 3/4 and 6/8


def test_each_trial_starts_from_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/before")
    seen = []
    for _ in range(2):
        with _empty_cache():
            seen.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            assert not any(Path(seen[-1]).iterdir())
            (Path(seen[-1]) / "kernel.so").write_text("")
    assert len({*seen, "/before"}) == 3
    assert not any(Path(folder).exists() for folder in seen)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/before"


@pytest.mark.slow  # compiles C++
def test_a_break_is_found_at_the_line_that_needs_a_value() -> None:
    modes = ("default", "max-autotune")
    outcome, trials = compile_part(subject(Breaks(), torch.ones(4)), 3, modes)
    assert outcome.verdict in (Verdict.OK, Verdict.SKIPPED)  # skipped where no C++ compiler is installed
    figures = trials[0].figures
    if figures is None:
        pytest.skip(f"no figures: {outcome.detail}, {outcome.reason}")
    assert [trial.mode for trial in trials] == list(modes)
    if not torch.cuda.is_available():
        assert [trial.remarks[:1] for trial in trials] == [(), ("CUDA graphs skipped: no GPU",)]
    assert trials[1].figures is not None
    assert trials[1].figures.breaks == figures.breaks
    assert figures.graphs == 2
    (found,) = figures.breaks
    assert found.site == "test_compile_trial.py:24 in forward"
    assert figures.compile_seconds > figures.compiled_seconds > 0
    assert figures.compiled_of_eager > 0
    assert (figures.runs, figures.eager_seconds > 0) == (3, True)


def test_a_mode_that_fails_is_a_row_with_the_reason_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    explained = SimpleNamespace(graph_count=1, break_reasons=[])
    monkeypatch.setattr(torch._dynamo, "explain", lambda module: lambda *args, **kwargs: explained)

    def compiled(module: Any, mode: str = "default") -> Any:
        if mode == "max-autotune":
            raise RuntimeError("no room to tune")
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    modes = ("default", "max-autotune", "reduce-overhead")
    outcome, trials = compile_part(subject(nn.ReLU(), torch.ones(4)), 1, modes)
    assert [(trial.mode, trial.figures is None) for trial in trials] == [
        ("default", False),
        ("max-autotune", True),
        ("reduce-overhead", False),
    ]
    assert trials[1].remarks == ("no room to tune",)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "no room to tune")


def test_what_a_mode_asks_for_and_does_not_get_is_said() -> None:
    assert list(_remarks("default", {})) == []
    assert list(_remarks("reduce-overhead", {"cudagraph_skips": 1})) == ["CUDA graphs skipped: no GPU"]
    assert list(_remarks("reduce-overhead", {})) == []  # captured
    assert list(_remarks("max-autotune-no-cudagraphs", {"select_algorithm_autotune": 3})) == []
    (said,) = _remarks("max-autotune-no-cudagraphs", {})
    assert said.startswith("nothing autotuned")


def test_a_missing_compiler_is_no_failure_of_the_part() -> None:
    raised = CheckOutcome(
        check=Check.COMPILE, verdict=Verdict.FAILED, error="InductorError", reason="InvalidCxxCompiler: No working"
    )
    outcome = _without_compiler(raised)
    assert outcome is not None
    assert (outcome.verdict, outcome.remedy) == (Verdict.SKIPPED, "install g++ or clang, or set CXX")
    other = CheckOutcome(check=Check.COMPILE, verdict=Verdict.FAILED, error="RuntimeError", reason="shapes differ")
    assert _without_compiler(other) is None
