from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.recordings import RECORDING_FILE, read_recording
from llm_perf_opt.core.recordings.recording import Recording
from tests.slowness import timed


def event(category: str, name: str, start_us: float, duration_us: float, tid: int = 1, **fields: Any) -> dict[str, Any]:
    arguments = {name.replace("_", " "): value for name, value in fields.items()}
    place = {"pid": 1, "tid": tid, "ts": start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": arguments}


def kernel(
    name: str, start_us: float, duration_us: float = 1.0, category: str = "kernel", **fields: Any
) -> dict[str, Any]:
    return event(category, name, start_us, duration_us, tid=7, device=fields.pop("device", 0), **fields)


HOST = [
    event("user_annotation", "ProfilerStep#3", 0, 100),
    event("python_function", "nn.Module: Block_0", 1, 50),
    event("python_function", "nn.Module: Linear_0", 2, 20),
    event("cpu_op", "aten::linear", 3, 10, External_id=1, Input_Dims=[[2, 8], [4, 8], []]),
    event("cpu_op", "aten::addmm", 4, 8, External_id=2, Input_Dims=[[4], [2, 8], [8, 4]]),
    event("cuda_runtime", "cudaLaunchKernel", 6, 1, correlation=11),
    event("cpu_op", "aten::cat", 30, 4, External_id=3, Input_Dims=[[[2, 4], [2, 4]], []]),
    event("cuda_runtime", "cudaLaunchKernel", 31, 1, correlation=12),
]


def written(folder: Path, events: list[dict[str, Any]], **others: Any) -> Path:
    file = folder / "trace.json"
    properties = [{"id": 0, "name": "Some GPU"}, {"id": 1, "name": "Other GPU"}]
    file.write_text(json.dumps({"traceEvents": events, "deviceProperties": properties, **others}), "utf-8")
    return file


def read(folder: Path, *kernels: dict[str, Any]) -> Recording:
    return read_recording(written(folder, [*HOST, *kernels]))


def test_a_kernel_has_the_op_of_its_id_with_shapes_and_modules(tmp_path: Path) -> None:
    recording = read(tmp_path, kernel("gemm", 200, 5.5, External_id=2, correlation=11))
    (work,) = recording.work
    assert (work.duration_ns, work.launched_ns) == (5_500, 6_000)
    outer, inner = recording.chain_of(work)
    assert (outer.name, outer.input_shapes) == ("aten::linear", ((2, 8), (4, 8)))
    assert (inner.name, inner.modules) == ("aten::addmm", ("Block_0", "Linear_0"))
    assert recording.device_name == "Some GPU"


def test_without_an_id_the_launch_lies_within_the_op(tmp_path: Path) -> None:
    recording = read(tmp_path, kernel("cat", 300, correlation=12), kernel("gemm", 200, correlation=11))
    assert [recording.chain_of(work)[-1].name for work in recording.work] == ["aten::addmm", "aten::cat"]
    assert recording.chain_of(recording.work[1])[0].input_shapes == ((2, 4), (2, 4))


def test_kernels_of_a_replayed_graph_have_no_op(tmp_path: Path) -> None:
    """The launch of the whole graph lies in some op, which says nothing of its thousand kernels."""
    graph_launch = event("cuda_runtime", "cudaGraphLaunch", 5, 1, correlation=50)
    recording = read(tmp_path, graph_launch, kernel("gemm", 200, External_id=2, correlation=50))
    assert [work.op for work in recording.work] == [-1]


def test_copies_and_fills_are_work_too(tmp_path: Path) -> None:
    fill = kernel("Memset (Device)", 100, category="gpu_memset")
    copy = kernel("Memcpy DtoH (Device -> Host)", 101, category="gpu_memcpy")
    assert [work.kind for work in read(tmp_path, copy, fill).work] == ["fill", "copy"]


def test_a_step_holds_what_it_launched(tmp_path: Path) -> None:
    """The first kernel was launched before the recording began; the second by the step, and ran long after it."""
    recording = read(tmp_path, kernel("early", 50, correlation=99), kernel("gemm", 900, correlation=11))
    assert [work.name for work in recording.at_steps(None).work] == ["gemm"]
    assert [work.name for work in recording.at_steps(2, 3).work] == ["gemm"]
    with pytest.raises(UsageError, match="no step 8"):
        recording.at_steps(8)


def test_of_several_devices_the_busiest_is_read(tmp_path: Path) -> None:
    recording = read(tmp_path, kernel("small", 100, 1.0, device=0), kernel("large", 100, 9.0, device=1))
    assert [work.name for work in recording.work] == ["large"]
    assert (recording.device_name, recording.other_devices) == ("Other GPU", 1)


def test_the_list_of_events_alone_and_a_packed_file_are_read_too(tmp_path: Path) -> None:
    events = [*HOST, kernel("gemm", 200, correlation=11)]
    (tmp_path / "list.json").write_text(json.dumps(events), "utf-8")
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    for name in ("list.json", "packed.json.gz"):
        assert [work.name for work in read_recording(tmp_path / name).work] == ["gemm"]


BAD = {
    "nothing": b"",
    "half": b'{"traceEvents": [{"ph": "X", "cat": "kern',
    "no events": b'{"other": 1}',
    "events of another type": b'{"traceEvents": {"a": 1}}',
    "an event that is a number": b'{"traceEvents": [7]}',
    "no kernel": b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}',
    "no time": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": "soon", "dur": 1}]}',
    "a time beyond clocks": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1e300, "dur": 1}]}',
    "a time before its start": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": -1}]}',
    "too deep": b'{"traceEvents": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "not text": bytes(range(256)),
    "half a gzip file": gzip.compress(b'{"traceEvents": []}' * 1000)[:40],
    "half a database": b"SQLite format 3\x00" + b"\x00" * 100,
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_file_is_refused_with_its_name_and_what_to_do(name: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(BAD[name])
    with pytest.raises(PerfOptError) as caught:
        read_recording(file)
    assert str(file) in caught.value.what
    assert caught.value.why and caught.value.fix
    assert len(str(caught.value)) < 2000


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from llm_perf_opt.core import recordings as reader

    monkeypatch.setattr(reader, "RECORDING_FILE", replace(RECORDING_FILE, max_bytes=2**20))
    file = tmp_path / "bomb.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**24 + b"]}"))
    assert file.stat().st_size < 2**20
    with pytest.raises(UsageError, match="too large"):
        read_recording(file)


def test_too_many_values_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from llm_perf_opt.core import recordings as reader

    monkeypatch.setattr(reader, "RECORDING_FILE", replace(RECORDING_FILE, max_elements=10))
    with pytest.raises(UsageError, match="more than 10 values"):
        read(tmp_path, kernel("gemm", 200))


def test_events_around_one_another_without_end_are_refused(tmp_path: Path) -> None:
    deep = [event("cpu_op", "aten::x", number, 10_000 - 2 * number) for number in range(2_000)]
    with pytest.raises(PerfOptError, match="holds a value that cannot be") as refused:
        read_recording(written(tmp_path, [*deep, kernel("gemm", 200)]))
    assert "more than 1,000 events around one another" in refused.value.why


def test_a_file_of_many_threads_takes_time_in_proportion(tmp_path: Path) -> None:
    """Five thousand threads, each with a module and a kernel: a minute if each looked at all others."""
    events = []
    for number in range(5_000):
        events += [
            event("python_function", f"nn.Module: Block_{number}", 1, 9, tid=number),
            event("cpu_op", "aten::x", 2, 5, tid=number),
            event("cuda_runtime", "cudaLaunchKernel", 3, 1, tid=number, correlation=number),
            kernel("gemm", 100 + number, correlation=number),
        ]
    file = written(tmp_path, events)
    recording = timed(10, lambda: read_recording(file))
    assert [recording.chain_of(work)[0].modules for work in recording.work[:2]] == [("Block_0",), ("Block_1",)]


def test_a_packed_file_that_needs_all_memory_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    from llm_perf_opt.core.work_limits import limits

    file = tmp_path / "bomb.json.gz"
    file.write_bytes(gzip.compress(b'{"traceEvents": [' + b"{}," * 1_000_000 + b"{}]}"))
    assert file.stat().st_size < 10_000
    with pytest.raises(PerfOptError, match="is too large for the memory") as refused, limits(max_memory=0.05):
        read_recording(file)
    assert "at least 76.3 MiB" in refused.value.why


def test_on_a_processor_the_outermost_ops_are_the_work(tmp_path: Path) -> None:
    """Each is named by the op with the most time of its own in it: of linear, 10 us, that is addmm with 8."""
    recording = read_recording(written(tmp_path, HOST), of_host=True)
    assert [(work.name, work.duration_ns, work.launched_ns) for work in recording.work] == [
        ("aten::addmm", 10_000, 3_000),
        ("aten::cat", 4_000, 30_000),
    ]
    assert [op.name for op in recording.chain_of(recording.work[0])] == ["aten::linear", "aten::addmm"]


def test_the_last_range_of_a_name_is_what_it_launched(tmp_path: Path) -> None:
    ranges = [event("user_annotation", "stage: decode", 0, 20), event("user_annotation", "stage: decode", 29, 9)]
    kernels = (kernel("a", 200, correlation=11), kernel("b", 300, correlation=12), kernel("c", 400, correlation=12))
    recording = read_recording(written(tmp_path, [*HOST, *ranges, *kernels]))
    assert [work.name for work in recording.in_last_range("stage: decode").work] == ["b", "c"]
    assert recording.in_last_range("stage: prefill").work == ()
    assert [one.name for one in recording.ranges] == ["stage: decode", "stage: decode"]  # a step is none
