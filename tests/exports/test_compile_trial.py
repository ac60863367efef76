"""Graph breaks are counted and located, and eager and compiled times stand side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from llm_perf_opt.export_outcome import Check, Outcome, Verdict
from llm_perf_opt.exports.compile_trial import _without_compiler, compile_part
from llm_perf_opt.exports.part_under_test import PartUnderTest
from llm_perf_opt.exports.tensor_signature import TensorsOnly
from llm_perf_opt.plugins import Part


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        if x.sum().item() > 0:
            x = x + 1
        return x * 3


def subject(module: nn.Module, *args: Any) -> PartUnderTest:
    part = Part(name="part", path="part")
    return PartUnderTest(part=part, call=TensorsOnly(module, args, {}), names=("x",), adaptations=())


@pytest.mark.slow  # compiles C++
def test_a_break_is_found_at_the_line_that_needs_a_value() -> None:
    outcome, figures = compile_part(subject(Breaks(), torch.ones(4)), runs=3)
    assert outcome.verdict in (Verdict.OK, Verdict.SKIPPED)  # skipped where no C++ compiler is installed
    if figures is None:
        pytest.skip(f"no figures: {outcome.told}, {outcome.reason}")
    assert figures.graphs == 2
    (found,) = figures.breaks
    assert found.site == "test_compile_trial.py:21 in forward"
    assert figures.compile_seconds > figures.compiled_seconds > 0
    assert (figures.runs, figures.eager_seconds > 0) == (3, True)


def test_a_missing_compiler_is_no_failure_of_the_part() -> None:
    raised = Outcome(
        check=Check.COMPILE, verdict=Verdict.FAILED, error="InductorError", reason="InvalidCxxCompiler: No working"
    )
    outcome = _without_compiler(raised)
    assert outcome is not None
    assert (outcome.verdict, outcome.remedy) == (Verdict.SKIPPED, "install g++ or clang, or set CXX")
    other = Outcome(check=Check.COMPILE, verdict=Verdict.FAILED, error="RuntimeError", reason="shapes differ")
    assert _without_compiler(other) is None
