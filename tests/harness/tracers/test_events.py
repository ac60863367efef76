"""Every tracer lists enter and exit of each call in the order in which they happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph, read_callgraph, to_json_dict, write_callgraph
from llm_perf_opt.core.callgraph.queries import events_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.core.protocols import Sight
from llm_perf_opt.core.target import Target
from tests.harness.tracers.hard_cases import CASES
from tests.harness.tracers.tracer_params import tracers_that_see

MODULE_TRACERS = tracers_that_see(Sight.MODULES)


class Twice(nn.Module):
    """A layer between two uses of one block."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block(self.between(self.block(x)))
        return out


BLOCK = ["enter block", "enter block.0", "exit block.0", "enter block.1", "exit block.1", "exit block"]
ORDER = ["enter ", *BLOCK, "enter between", "exit between", *BLOCK, "exit "]


def traced(tracer: str) -> CallGraph:
    target = Target(
        model="twice", phase="forward", workload={}, build=Twice, invoke=lambda model: model(torch.ones(2, 4))
    )
    return TRACERS.get(tracer)().trace(target)


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_events_are_written_in_the_order_of_the_run(tracer: str, tmp_path: Path) -> None:
    write_callgraph(traced(tracer), tmp_path / "g.json", overwrite=False, with_events=True)
    events: list[dict[str, Any]] = json.loads((tmp_path / "g.json").read_text())["events"]
    assert [f"{event['event']} {event['path']}" for event in events] == ORDER
    assert [event["index"] for event in events] == list(range(len(ORDER)))
    parents = [event["parent"] for event in events]
    assert parents == [None, "", "block", "block", "block", "block", "", "", "", "", *["block"] * 4, "", None]


@pytest.mark.parametrize("tracer", MODULE_TRACERS)
def test_events_are_read_back_and_agree_with_the_calls(tracer: str, tmp_path: Path) -> None:
    trace = lpo.trace("deepseek-ocr-tiny", image="64x64", decode_steps=1, tracer=tracer, events=True, out=tmp_path)
    for graph, file in zip(trace.graphs, trace.files, strict=True):
        again = read_callgraph(file)
        assert again.events == graph.events == events_of(graph)
        assert len(again.events) == 2 * sum(again.call_counts.values())
        assert again.problems() == []
        assert to_json_dict(again)["events"] == json.loads(file.read_text())["events"]


@pytest.mark.parametrize("case", CASES)
def test_all_tracers_list_the_same_events(case: str) -> None:
    expected = None
    for tracer in ("weightless", "hooks", "profiler"):
        graph = TRACERS.get(tracer)().trace(CASES[case].target())
        found = [(event["event"], event["path"]) for event in to_json_dict(graph, with_events=True)["events"]]
        expected = expected or found
        assert found == expected, tracer


def test_without_the_option_no_file_holds_events(tmp_path: Path) -> None:
    trace = lpo.trace(Twice(), [torch.ones(2, 4)], out=tmp_path)
    assert trace.graphs[0].events == ()
    assert "events" not in json.loads(trace.files[0].read_text())


def test_a_run_that_stops_keeps_the_events_up_to_there(tmp_path: Path) -> None:
    class Stops(Twice):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.block(x)
            raise RuntimeError("half-way")

    with pytest.raises(PerfOptError):
        lpo.trace(Stops(), [torch.ones(2, 4)], events=True, out=tmp_path)
    (file,) = tmp_path.glob("*.partial.callgraph.json")
    assert [f"{event} {path}" for event, path in read_callgraph(file).events] == ["enter ", *BLOCK, "exit "]
