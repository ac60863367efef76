"""What torch.profiler records besides time: the source line, the module and the allocations of each op."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.measurement import OperatorTime
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.profiler_details import ProfilerOptions
from llm_perf_opt.harness.tracers.profiler_tracer import ProfilerTracer
from llm_perf_opt.measurements.timed.timed_runs import TimedRuns
from tests.measurements.timed.made_pages import on_cpu
from tests.measurements.timed.test_timed_runs import twin_page

TOKENS, WIDTH, INNER = 8, 64, 96
ALL = ProfilerOptions(with_stack=True, with_modules=True, profile_memory=True)


class Feeds(nn.Module):
    """Two matmuls and a gate: each op stands in a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        gated = torch.relu(hidden)
        scaled = gated * 2
        return self.down(scaled)


def line_of(text: str) -> int:
    lines, first = inspect.getsourcelines(Feeds.forward)
    (found,) = [place for place, line in enumerate(lines) if text in line]
    return first + found


def target() -> Target:
    model = nn.Sequential(Feeds())
    return Target(
        model="m", phase="prefill", workload={}, build=lambda: model, invoke=lambda m: m(torch.ones(TOKENS, WIDTH))
    )


def traced(folder: Path | None = None, **options: bool) -> CallGraph:
    with torch.no_grad():
        return ProfilerTracer(keep_in=folder, **options).trace(target())


def ops_in(file: Path, name: str) -> list[dict[str, Any]]:
    events = json.loads(file.read_text("utf-8"))["traceEvents"]
    return [event["args"] for event in events if event.get("cat") == "cpu_op" and event["name"] == name]


def test_an_op_of_the_call_graph_knows_its_source_line() -> None:
    graph = traced(with_stack=True)
    found = {(kind.name, kind.arguments["source"]) for kind in graph.op_kinds if "source" in kind.arguments}
    here = Path(__file__).name
    assert ("aten::linear", f"{here}:{line_of('self.up(x)')} in forward") in found
    assert ("aten::linear", f"{here}:{line_of('self.down(scaled)')} in forward") in found
    assert ("aten::relu", f"{here}:{line_of('torch.relu')} in forward") in found
    assert (
        "aten::mul",
        f"{here} in forward",
    ) in found  # `*`: the function is known, and no line made up


def test_without_options_nothing_more_is_recorded(tmp_path: Path) -> None:
    graph = traced(tmp_path)
    assert {name for kind in graph.op_kinds for name in kind.arguments} <= {"input_shapes", "input_types"}
    file = tmp_path / "prefill.chrome-trace.json"
    assert not any("Call stack" in fields or "Source" in fields for fields in ops_in(file, "aten::linear"))


def test_stacks_and_modules_are_in_the_chrome_trace(tmp_path: Path) -> None:
    traced(tmp_path, with_stack=True, with_modules=True)
    file = tmp_path / "prefill.chrome-trace.json"
    up, down = ops_in(file, "aten::linear")
    assert (up["Module Hierarchy"], down["Module Hierarchy"]) == ("0.up", "0.down")
    assert up["Call stack"].split(";")[-1].endswith("in <lambda>")  # how the run was started is left out
    assert f"{Path(__file__).name}:{line_of('self.up(x)')} in forward" in up["Call stack"]
    assert ops_in(file, "aten::relu")[0]["Module Hierarchy"] == "0"
    events = json.loads(file.read_text("utf-8"))["traceEvents"]
    assert any(event.get("cat") == "python_function" and "Feeds" in event["name"] for event in events)


def test_memory_is_what_the_shapes_say(tmp_path: Path) -> None:
    graph = traced(tmp_path, profile_memory=True)
    allocated = {
        (kind.name, tuple(kind.arguments["input_shapes"][1])): kind.arguments["allocated_bytes"]
        for kind in graph.op_kinds
        if kind.name == "aten::linear"
    }
    assert allocated == {
        ("aten::linear", (INNER, WIDTH)): 4 * TOKENS * INNER,
        ("aten::linear", (WIDTH, INNER)): 4 * TOKENS * WIDTH,
    }
    (mm, _) = ops_in(tmp_path / "prefill.chrome-trace.json", "aten::mm")
    (linear, _) = ops_in(tmp_path / "prefill.chrome-trace.json", "aten::linear")
    assert mm["Self allocated bytes"] == 4 * TOKENS * INNER
    assert linear["Self allocated bytes"] == 0  # the matmul inside it allocates


def by_operator(found: tuple[OperatorTime, ...]) -> Counter[tuple[str, str]]:
    calls: Counter[tuple[str, str]] = Counter()
    for record in found:
        calls[record.stage, record.operator] += record.calls
    return calls


def test_the_operator_table_splits_by_line_and_module_and_loses_no_call(tmp_path: Path) -> None:
    page = twin_page(max_new_tokens=2)
    runs = TimedRuns(on_cpu())
    plain = runs.operators(page, tmp_path / "plain.json", modules=False)
    assert {(one.module, one.source, one.self_allocated_bytes) for one in plain} == {(None, None, None)}
    found = runs.operators(page, tmp_path / "all.json", modules=False, options=ALL)
    assert by_operator(found) == by_operator(plain)
    assert len(found) > len(plain)
    matmuls = [record for record in found if (record.stage, record.operator) == ("decode", "aten::linear")]
    heads = [matmul for matmul in matmuls if matmul.module == "lm_head"]
    assert [(head.calls, head.source) for head in heads] == [(1, heads[0].source)]
    assert heads[0].source is not None and heads[0].source.startswith("blueprint.py:")
    conv = [record for record in found if record.operator == "aten::mkldnn_convolution"]
    assert all(one.self_allocated_bytes for one in conv)


@pytest.mark.parametrize("option", ["with_stack", "with_modules", "profile_memory"])
def test_each_option_records_its_own_column(tmp_path: Path, option: str) -> None:
    options = ProfilerOptions(**{option: True})
    found = TimedRuns(on_cpu()).operators(
        twin_page(max_new_tokens=1), tmp_path / "trace.json", modules=False, options=options
    )
    columns = {"with_stack": "source", "with_modules": "module", "profile_memory": "self_allocated_bytes"}
    known = {name for name in columns.values() if any(getattr(record, name) is not None for record in found)}
    assert known == {columns[option]}
