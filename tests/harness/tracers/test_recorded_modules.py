"""`--only` and `--stage` of real tracers: fewer modules are recorded, and nothing of the run is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.comparisons.causes import compare
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.module_selection import recorded_of, recorded_only
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.target import Stage, Target
from llm_perf_opt.graphs.call_checks import call_checks

REAL = ("hooks", "profiler")
pytestmark = pytest.mark.usefixtures("one_thread")


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(x)))
        return out


class TwoStages(nn.Module):
    """A tower that is called twice, then two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.layers = nn.ModuleList(Mlp() for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tower(self.tower(x))
        for layer in self.layers:
            x = x + layer(x)
        out: Tensor = self.head(x)
        return out


def target() -> Target:
    return Target(
        model="two stages",
        phase="prefill",
        workload={},
        build=cache(TwoStages),
        invoke=lambda model: model(torch.ones(2, 4)),
        stages=(Stage(name="vision", paths=("tower",)),),
    )


def traced(tracer: str, **asked: Any) -> CallGraph:
    return TRACERS.get(tracer)(**asked).trace(target())


@pytest.mark.parametrize("tracer", REAL)
def test_only_what_is_named_the_root_and_the_stages_are_recorded(tracer: str) -> None:
    graph = traced(tracer, only="linear")
    assert graph.problems() == []
    assert dict(graph.call_counts) == {
        "": 1, "tower": 2, "tower.0": 2, "layers.0.up": 1, "layers.0.down": 1, "layers.1.up": 1, "layers.1.down": 1,
        "head": 1,
    }  # fmt: skip
    assert graph.edges["->layers.0.up"] == 1  # its caller is the nearest module that is recorded
    assert graph.edges["tower->tower.0"] == 2
    assert len(graph.module_types) == 14  # the model is declared whole


@pytest.mark.parametrize("tracer", REAL)
def test_a_stage_by_its_name(tracer: str) -> None:
    assert set(traced(tracer, stage="vision").call_counts) == {"", "tower", "tower.0", "tower.1"}
    assert set(traced(tracer, stage="prefill", only="norm,Mlp").call_counts) == {"", "tower", "layers.0", "layers.1"}


@pytest.mark.parametrize("tracer", REAL)
def test_the_trace_says_what_it_is_and_how_much_it_left_out(tracer: str) -> None:
    graph = traced(tracer, only="linear", stage="vision")
    assert graph.workload["only"] == "linear"
    assert graph.workload["only_stages"] == "vision"
    assert recorded_only(graph.workload) == "only linear, only stage vision"
    (note,) = [note for note in graph.notes if note.startswith("filtered")]
    assert "3 of 14 modules are recorded" in note
    assert "other 11" in note
    assert recorded_of(graph) == {"", "tower", "tower.0"} == set(graph.call_counts)
    assert recorded_only(traced(tracer).workload) is recorded_of(traced(tracer)) is None


def test_no_op_is_lost() -> None:
    whole, part = traced("profiler"), traced("profiler", only="norm")
    assert whole.ops is not None
    assert part.ops is not None
    assert sum(part.op_call_counts.values()) == sum(whole.op_call_counts.values())
    in_tower = sum(whole.op_call_counts[path] for path in ("tower", "tower.0"))
    assert part.op_call_counts["tower"] == in_tower
    assert part.op_call_counts["tower.1"] == whole.op_call_counts["tower.1"]


def test_the_time_of_the_whole_run_stays_in_the_root() -> None:
    graph = traced("hooks", only="norm")
    assert graph.calls is not None
    first = graph.calls.path.index(graph.paths.index(""))
    assert graph.calls.started_ns[first] == min(graph.calls.started_ns)
    assert graph.calls.ended_ns[first] == max(graph.calls.ended_ns)


@pytest.mark.parametrize("tracer", REAL)
def test_a_word_that_names_nothing_is_refused_before_the_run(tracer: str) -> None:
    with pytest.raises(UsageError, match="names no module with 'Conv2d'"):
        traced(tracer, only="linear,Conv2d")
    with pytest.raises(UsageError, match="names no module with 'conv', 'pool'"):
        traced(tracer, only="conv,pool")
    assert "head" in traced(tracer, only="linear,conv").call_counts  # a list of families serves every model


@pytest.mark.parametrize("tracer", REAL)
def test_compare_knows_a_filter_as_the_cause_and_explains_no_more_by_it(tracer: str) -> None:
    whole, part = traced(tracer), traced(tracer, only="linear")
    found = compare(whole, part)
    assert {finding.explanation.cause for finding in found.findings if finding.explanation} == {"filtered trace"}
    assert found.unexplained == ()
    calls = {path: count for path, count in part.call_counts.items() if path != "head"}
    edges = {edge: count for edge, count in part.edges.items() if edge != "->head"}
    tensors = {path: seen for path, seen in part.input_metadata.items() if path != "head"}
    wrong = replace(part, call_counts=calls, edges=edges, input_metadata=tensors, output_metadata={})
    assert {finding.difference.path for finding in compare(whole, wrong).unexplained} == {"head"}


def test_calls_are_not_checked_where_modules_are_missing() -> None:
    from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter
    from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload

    adapter = DeepSeekOcrTinyAdapter()
    prefill = adapter.targets(DeepSeekOcrWorkload(mode="tiny"))[0]
    assert call_checks([TRACERS.get("hooks")().trace(prefill)])
    filtered = TRACERS.get("hooks")(only="linear")  # type: ignore[call-arg]
    assert call_checks([filtered.trace(prefill)]) == ()
