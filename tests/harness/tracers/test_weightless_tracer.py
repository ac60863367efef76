"""What only the weightless tracer does: revise a guess with a clean record, and replay routing by phase."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer


class Picky(nn.Module):
    """Refuses the oracle's first guess after some work is done."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if not bool(x.max() < 3):
            raise ValueError("values out of range")
        return x


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).topk(1, dim=-1).indices[:, 0]
        for number, expert in enumerate(self.experts):
            rows = x[chosen == number]
            if len(rows):
                expert(rows)
        return x


def target(model: nn.Module, phase: str = "prefill") -> Target:
    return Target(model="m", phase=phase, workload={}, build=lambda: model, invoke=lambda m: m(torch.ones(6, 4)))


def test_a_revised_run_is_recorded_once() -> None:
    graph = WeightlessTracer().trace(target(Picky()))
    assert graph.call_counts == {"": 1, "layer": 1}
    assert graph.problems() == []


def test_recorded_counts_are_replayed_phase_by_phase(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"prefill": [[5, 0, 1]], "decode": [[0, 6, 0]]}))
    model, tracer = Router(), WeightlessTracer(routing=f"replay:{file}")
    rows = {}
    for phase in ("prefill", "decode"):
        graph = tracer.trace(target(model, phase))
        assert graph.workload["routing"] == "replay"
        rows[phase] = {
            path: graph.input_metadata[path][0].tensors[0].shape[0]
            for path in graph.call_counts
            if path.startswith("experts.")
        }
    assert rows == {"prefill": {"experts.0": 5, "experts.2": 1}, "decode": {"experts.1": 6}}


@pytest.mark.parametrize(
    "text",
    [
        *("not json", "{}", "[]", '{"prefill": 3}', '{"prefill": [["x"]]}', '{"prefill": [[-1]]}'),
        *('{"prefill": [[1e3]]}', '{"prefill": [[true]]}', '{"prefill": [[99999999999999999999]]}'),
        '{"prefill": [], "prefill": []}',
    ],
)
def test_a_file_without_counts_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "counts.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="expert counts"):
        WeightlessTracer(routing=f"replay:{file}").trace(target(Router()))
