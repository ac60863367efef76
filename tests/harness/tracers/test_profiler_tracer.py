"""What only the profiler tracer does: times of ops, a Chrome trace with our ranges, kernels attributed to ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.protocols import PartialTrace
from llm_perf_opt.core.target import Stage, Target
from llm_perf_opt.harness.tracers.chrome_trace import Entered, Left, ProfiledOp, read_chrome_trace
from llm_perf_opt.harness.tracers.profiler_tracer import ProfilerTracer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) * 2


def target() -> Target:
    model = nn.Sequential(Block(), Block())
    return Target(
        model="m",
        phase="prefill",
        workload={},
        build=lambda: model,
        invoke=lambda m: m(torch.ones(8, 64)),
        stages=(Stage(name="first", paths=("0",)),),
    )


def names_in(graph: Any, path: str) -> list[str]:
    calls = [row for row, path_row in enumerate(graph.calls.path) if graph.paths[path_row] == path]
    return [
        graph.op_kinds[kind].name for kind, call in zip(graph.ops.kind, graph.ops.call, strict=True) if call in calls
    ]


def test_ops_are_placed_in_the_module_that_dispatched_them() -> None:
    graph = ProfilerTracer().trace(target())
    assert graph.problems() == []
    assert names_in(graph, "0") == ["aten::relu", "aten::mul"]
    assert names_in(graph, "0.layer") == ["aten::linear"]  # what linear calls in turn is part of it
    assert graph.op_call_counts == {"": 0, "0": 2, "0.layer": 1, "1": 2, "1.layer": 1}


def test_ops_carry_shapes_and_times_within_their_call() -> None:
    graph = ProfilerTracer().trace(target())
    assert graph.ops is not None and graph.calls is not None
    linear = next(kind for kind in graph.op_kinds if kind.name == "aten::linear")
    assert linear.arguments["input_shapes"] == [[8, 64], [64, 64], [64]]
    assert min(graph.ops.duration_ns) > 0
    assert len(graph.ops.device_ns) == 0
    for call, (start, end) in enumerate(zip(graph.calls.started_ns, graph.calls.ended_ns, strict=True)):
        own = [ns for ns, at in zip(graph.ops.duration_ns, graph.ops.call, strict=True) if at == call]
        assert sum(own) <= end - start


def test_the_chrome_trace_is_kept_with_ranges_for_stages_and_modules(tmp_path: Path) -> None:
    ProfilerTracer(keep_in=tmp_path).trace(target())
    document = json.loads((tmp_path / "prefill.chrome-trace.json").read_text())
    ranges = [event["name"] for event in document["traceEvents"] if event.get("cat") == "user_annotation"]
    assert ranges == [
        "module: (root)",
        "stage: first",
        "module: 0",
        "module: 0.layer",
        "module: 1",
        "module: 1.layer",
    ]


@pytest.mark.parametrize("left", ["", '{"traceEvents": [', None])
def test_half_a_chrome_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str | None) -> None:
    def on_a_full_disk(self: object, path: str) -> None:
        if left is not None:
            Path(path).write_text(left)

    monkeypatch.setattr("torch.profiler.profile.export_chrome_trace", on_a_full_disk)
    with pytest.raises(PerfOptError, match="Cannot write the Chrome trace"):
        ProfilerTracer(keep_in=tmp_path).trace(target())
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ProfilerTracer().trace(target())
    assert list(tmp_path.iterdir()) == []


def test_a_range_that_cannot_be_opened_is_the_error_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that a range is missing afterwards."""
    texts: list[str] = []

    def fails(text: str) -> str:
        texts.append(text)
        if len(texts) == 3:
            raise KeyError("no range")
        return text

    monkeypatch.setattr("llm_perf_opt.harness.tracers.profiler_tracer.range_text", fails)
    with pytest.raises(PartialTrace) as stopped:
        ProfilerTracer().trace(target())
    assert isinstance(stopped.value.__cause__, KeyError)


def slice_of(cat: str, name: str, start: float, duration: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration, "args": args}


# The fields that torch.profiler writes for a CUDA run: an op, the launches inside it, and kernels on a stream later on.
CUDA_RUN = [
    slice_of("user_annotation", "module: (root)", 100, 100, **{"External id": 1}),
    slice_of("user_annotation", "module: layer", 110, 50, **{"External id": 2}),
    slice_of("cpu_op", "aten::linear", 111, 40, **{"External id": 3, "Input Dims": [[2, 4], [4, 4]]}),
    slice_of("cpu_op", "aten::addmm", 115, 30, **{"External id": 4}),
    slice_of("cuda_runtime", "cudaLaunchKernel", 120, 5, **{"External id": 4, "correlation": 90}),
    slice_of("cpu_op", "aten::relu", 170, 10, **{"External id": 5}),
    slice_of("cuda_runtime", "cudaLaunchKernel", 172, 5, correlation=91),
    slice_of("kernel", "gemm", 300, 25.5, tid=20, **{"External id": 4, "correlation": 90, "stream": 20}),
    slice_of("kernel", "relu", 330, 4, tid=20, correlation=91, stream=20),
    slice_of("gpu_memcpy", "Memcpy HtoD", 340, 3, tid=20, correlation=92, stream=20),
    slice_of("gpu_user_annotation", "module: layer", 300, 25.5, tid=20),
    slice_of("cpu_op", "aten::add", 112, 5, tid=2, **{"External id": 6}),
    {"ph": "i", "name": "Record Window End", "ts": 400},
]


def test_kernels_count_for_the_outermost_op_that_launched_them() -> None:
    run = read_chrome_trace({"traceEvents": CUDA_RUN})
    assert run.events == (
        Entered(0),
        Entered(10_000),
        ProfiledOp(
            name="aten::linear", arguments={"input_shapes": [[2, 4], [4, 4]]}, duration_ns=40_000, device_ns=25_500
        ),
        Left(60_000),
        ProfiledOp(name="aten::relu", arguments={}, duration_ns=10_000, device_ns=4_000),
        Left(100_000),
    )
    assert run.unattributed_device_ns == 3_000


def test_order_in_the_file_does_not_matter() -> None:
    assert read_chrome_trace({"traceEvents": CUDA_RUN[::-1]}) == read_chrome_trace({"traceEvents": CUDA_RUN})


def test_a_slice_that_seems_to_outlast_its_parent_is_cut() -> None:
    run = read_chrome_trace(
        {
            "traceEvents": [
                slice_of("user_annotation", "module: (root)", 0, 10),
                slice_of("user_annotation", "module: a", 5, 5.001),
            ]
        }
    )
    assert run.events == (Entered(0), Entered(5_000), Left(10_000), Left(10_000))


def test_a_trace_without_modules_has_no_events() -> None:
    run = read_chrome_trace({"traceEvents": [slice_of("cpu_op", "aten::add", 0, 1)]})
    assert (run.events, run.unattributed_device_ns) == ((), 0)
