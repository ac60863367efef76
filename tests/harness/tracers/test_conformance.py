"""What every tracer that sees modules must get right, whichever way it looks."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import PartialTrace, Sight
from llm_perf_opt.core.target import Target
from tests.harness.tracers.hard_cases import CASES, Raises
from tests.harness.tracers.tracer_params import tracers_that_see

MODULE_TRACERS = tracers_that_see(Sight.MODULES)
LIFETIME_TRACERS = tracers_that_see(Sight.LIFETIMES)
TIME_TRACERS = tracers_that_see(Sight.TIME)


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
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    with pytest.raises(PartialTrace) as stopped:
        TRACERS.get(tracer)().trace(target)
    assert isinstance(stopped.value.__cause__, RuntimeError)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_a_model_that_raises_leaves_a_trace_of_what_ran(tracer: str) -> None:
    target = Target(
        model="case", phase="prefill", workload={}, build=cache(Raises), invoke=lambda m: m(torch.ones(2, 4))
    )
    with pytest.raises(PartialTrace) as stopped:
        TRACERS.get(tracer)().trace(target)
    graph = stopped.value.graph
    assert graph.stopped_in == "wrong"
    assert graph.problems() == []
    assert graph.call_counts == {"": 1, "fine": 1, "wrong": 1}
    assert [meta.shape for meta in graph.output_metadata["fine"][0].tensors] == [(2, 4)]
    assert [row.tensors for row in graph.output_metadata["wrong"]] == [()]
    assert "in module wrong" in str(stopped.value)


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_after_a_fault_the_same_tracer_traces_on(tracer: str) -> None:
    instance = TRACERS.get(tracer)()
    broken = Target(
        model="case", phase="prefill", workload={}, build=cache(Raises), invoke=lambda m: m(torch.ones(2, 4))
    )
    with pytest.raises(PartialTrace):
        instance.trace(broken)
    assert instance.trace(CASES["shared"].target()).call_counts == CASES["shared"].calls


@pytest.mark.parametrize("tracer", TIME_TRACERS)
def test_every_call_has_a_time_within_that_of_its_caller(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(CASES["containers"].target())
    assert graph.calls is not None
    assert len(graph.calls.started_ns) == len(graph.calls.ended_ns) == 4
    assert all(end > start for start, end in zip(graph.calls.started_ns, graph.calls.ended_ns, strict=True))
    assert graph.problems() == []


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


def prepared_target() -> Target:
    """A layer on the sum of two tensors that were there before; the larger one is given up in between."""

    def prepare(model: nn.Module) -> dict[str, object]:
        return {"state": [torch.zeros(8, 4)], "rows": torch.full((2, 4), 0.5)}

    def invoke(model: nn.Module, given: dict[str, object]) -> object:
        with torch.no_grad():
            return model(given["rows"] + given["state"].pop()[:2])  # type: ignore[attr-defined, operator]

    return Target(
        model="case",
        phase="decode",
        workload={},
        build=cache(lambda: nn.Sequential(nn.Linear(4, 4))),
        prepare=prepare,
        invoke=invoke,
        notes=("two rows of eight",),
    )


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_what_was_prepared_is_an_input_and_no_work_of_the_phase(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(prepared_target())
    assert graph.problems() == []
    assert graph.call_counts == {"": 1, "0": 1}
    assert not [kind.name for kind in graph.op_kinds if "zeros" in kind.name or "full" in kind.name]
    assert graph.storages is not None
    given = [
        size for size, origin in zip(graph.storages.bytes, graph.storages.origin, strict=True) if origin == "input"
    ]
    assert sorted(given) == [2 * 4 * 4, 8 * 4 * 4]
    assert graph.notes[0] == "two rows of eight"


@pytest.mark.parametrize("tracer", LIFETIME_TRACERS)
def test_what_was_prepared_lives_until_the_phase_lets_go_of_it(tracer: str) -> None:
    graph = TRACERS.get(tracer)().trace(prepared_target())
    assert graph.storages is not None and graph.ops is not None
    ends = {
        size: freed
        for size, freed, origin in zip(
            graph.storages.bytes, graph.storages.freed_op, graph.storages.origin, strict=True
        )
        if origin == "input"
    }
    names = [graph.op_kinds[kind].name for kind in graph.ops.kind]
    assert ends[8 * 4 * 4] == names.index("aten.add.Tensor") + 1, "the state is gone when the sum is there"
    assert ends[2 * 4 * 4] == len(names), "the rows are held by whoever called"
