"""What tracers of real runs have in common: weights, devices, the same model for the same target."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from tests.harness.tracers.hard_cases import CASES
from tests.harness.tracers.tracer_params import tracer_param

REAL = [tracer_param(name) for name in ("hooks", "torchlens", "profiler")]


@pytest.mark.parametrize("tracer", REAL)
def test_a_real_run_without_weights_is_refused(tracer: str) -> None:
    with pytest.raises(UsageError, match="needs weights"):
        TRACERS.get(tracer)(weights="none")  # type: ignore[call-arg]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("tracer", REAL)
def test_a_device_that_is_not_there_is_refused(tracer: str) -> None:
    with pytest.raises(PerfOptError, match="no CUDA device"):
        TRACERS.get(tracer)(device="cuda")  # type: ignore[call-arg]


@pytest.mark.parametrize("tracer", REAL)
def test_a_model_of_ghosts_is_refused(tracer: str) -> None:
    target = CASES["shared"].target()
    WeightlessTracer().trace(target)
    with pytest.raises(PerfOptError, match="has no values in memory"):
        TRACERS.get(tracer)().trace(target)


@pytest.mark.parametrize("tracer", REAL)
def test_costs_are_unknown_and_not_zero(tracer: str) -> None:
    total = stage_costs(TRACERS.get(tracer)().trace(CASES["shared"].target())).total
    assert (total.flops, total.bytes_moved, total.activation_bytes) == (None, None, None)


@pytest.mark.parametrize("tracer", REAL)
def test_the_same_target_is_the_same_model_whatever_was_drawn_before(tracer: str) -> None:
    outputs = []

    def invoke(model: nn.Module) -> object:
        outputs.append(model(torch.ones(2, 4)).detach().clone())
        return outputs[-1]

    for seed in (1, 2):
        torch.manual_seed(seed)
        target = Target(model="m", phase="p", workload={}, build=cache(lambda: nn.Linear(4, 4)), invoke=invoke)
        TRACERS.get(tracer)().trace(target)
    assert torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("tracer", REAL)
def test_the_header_says_with_which_weights_and_where(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(CASES["shared"].target())
    assert (graph.tracer, graph.workload["weights"], graph.workload["device"]) == (tracer, "random", "cpu")
