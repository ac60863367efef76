"""What every tracer that sees modules must get right, whichever way it looks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from llm_perf_opt.plugins import TRACERS, PartialTrace, Sight, Target
from tests.tracers.hard_cases import CASES, Raises

MODULE_TRACERS = [name for name in TRACERS.names() if Sight.MODULES in TRACERS.get(name).sees]
LIFETIME_TRACERS = [name for name in TRACERS.names() if Sight.LIFETIMES in TRACERS.get(name).sees]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_calls_and_edges_are_those_of_the_model(tracer: str, case: str) -> None:
    graph = TRACERS.get(tracer)().trace(CASES[case].target())
    assert graph.problems() == []
    assert graph.call_counts == CASES[case].calls
    assert graph.edges == CASES[case].edges


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_keyword_and_nested_tensors_are_seen(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(CASES["containers"].target())
    for path in ("", "layers.0"):
        (observation,) = graph.input_metadata[path]
        assert [meta.shape for meta in observation.tensors] == [(2, 4)]


@pytest.mark.parametrize("tracer", LIFETIME_TRACERS)
def test_tied_weights_occupy_memory_once(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(CASES["tied weights"].target())
    storages = {parameter.name: parameter.storage for parameter in graph.parameters}
    assert len({storages[name] for name in CASES["tied weights"].tied}) == 1
    assert graph.storages is not None
    assert (
        sum(n for n, origin in zip(graph.storages.bytes, graph.storages.origin, strict=True) if origin == "parameter")
        == 128
    )


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_a_model_that_raises_is_left_as_it_was(tracer: str) -> None:
    model = Raises()
    target = Target(
        model="case", phase="prefill", workload={}, build=lambda: model, invoke=lambda m: m(torch.ones(2, 4))
    )
    with pytest.raises(PartialTrace) as stopped:
        TRACERS.get(tracer)().trace(target)
    assert stopped.value.graph.stopped_in == "wrong"
    assert isinstance(stopped.value.__cause__, RuntimeError)
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_two_traces_of_one_target_are_equal(tracer: str) -> None:
    target, instance = CASES["shared"].target(), TRACERS.get(tracer)()
    first, second = instance.trace(target), instance.trace(target)
    assert (first.call_counts, first.edges, first.op_call_counts) == (
        second.call_counts,
        second.edges,
        second.op_call_counts,
    )


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_what_a_model_prints_stays_off_standard_output(tracer: str, capsys: pytest.CaptureFixture[str]) -> None:
    TRACERS.get(tracer)().trace(CASES["direct forward"].target())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_constructor_parameters_are_read_by_reflection(tracer: str) -> None:
    def build() -> nn.Module:
        layer = nn.Conv2d(3, 8, (2, 4), stride=2, groups=1)
        layer.anything_new = 7  # type: ignore[assignment]
        return nn.Sequential(layer)

    target = Target(
        model="case", phase="prefill", workload={}, build=cache(build), invoke=lambda m: m(torch.ones(1, 3, 8, 8))
    )
    params = TRACERS.get(tracer)().trace(target).constructor_params["0"]
    assert params["in_channels"] == 3
    assert params["kernel_size"] == [2, 4]
    assert params["anything_new"] == 7
    assert "training" not in params
