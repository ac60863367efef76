"""Chrome traces made from the condensed recordings in `tests/facts/gpu_traces`.

Those hold, per op and shape, the kernel and its median time, and no order: the order here is that of the traced ops, so
such a trace shows that files are read and joined right, and not that two libraries run ops in the same order. That is
what `test_full_recordings.py` is for. Names of kernels are cut before their template arguments, as in the facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph, OpKind
from llm_perf_opt.core.recordings.recording import Recording
from llm_perf_opt.measurements.join.sides import Launch, traced_launches
from llm_perf_opt.ops.cost import packet_of
from llm_perf_opt.ops.kernel_names import launch_words

FACTS = Path(__file__).parents[2] / "facts" / "gpu_traces"
HOST_US = 10.0  # between two launches
STEP = "ProfilerStep#6"


@dataclass(frozen=True, slots=True)
class Row:
    """One op with one kind of input and one of its kernels."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    kernel: str
    count: int
    median_us: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(size for shape in self.shapes if (size := math.prod(shape)) > 1))

    @property
    def words(self) -> frozenset[str]:
        return word_of(self.op)


def word_of(op: str) -> frozenset[str]:
    """The words of an op that touches memory, whatever its shapes."""
    from llm_perf_opt.core.callgraph.records import TensorMeta

    some = TensorMeta((4, 4), "float32", "cuda:0")
    kind = OpKind(name=op.replace("::", ".").rstrip("_"), inputs=(some,) * 3, outputs=(some,))
    return frozenset().union(*(words.words for words in launch_words(kind)))


def facts(run: str) -> tuple[dict[str, Any], list[Row]]:
    """The header of a condensed recording, and the rows of its ops."""
    document = json.loads((FACTS / f"{run}.json").read_text("utf-8"))
    rows = [
        Row(op, tuple(_shapes(dims)), kernel, count, median_us)
        for op, dims, _, kernel, count, _, median_us in document["rows"]
        if op != "?"
    ]
    return document, rows


def _shapes(dims: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    for one in dims:
        if one and isinstance(one[0], list):
            yield from _shapes(one)
        elif one:
            yield tuple(one)


@dataclass(frozen=True, slots=True)
class Condensed:
    """A Chrome trace, and per kernel in it the op of the graph that it was written for."""

    document: dict[str, Any]
    ops: tuple[int, ...]

    def kernels(self) -> list[dict[str, Any]]:
        return [event for event in self.document["traceEvents"] if event["cat"] == "kernel"]


def condensed(run: str, graph: CallGraph) -> Condensed:
    """The kernels of a condensed recording, in the order of the traced ops; ops that it does not have are left out."""
    header, rows = facts(run)
    events: list[dict[str, Any]] = []
    ops: list[int] = []
    for launch in traced_launches(graph):
        row = next((row for row in rows if _is_of(row, launch)), None)
        if row is not None:
            events += _events(graph, launch, row, len(ops))
            ops.append(launch.ops[0])
    end_us = (len(ops) + 1) * HOST_US
    events.append(_event("user_annotation", STEP, 0.0, end_us, {"External id": 0}))
    events.append(_event("user_annotation", "module:(root)", 0.0, end_us, {}))
    properties = [{"id": 0, "name": header["device"]}]
    return Condensed({"traceEvents": events, "deviceProperties": properties}, tuple(ops))


def _is_of(row: Row, launch: Launch) -> bool:
    """A row of an inner op may lack a tensor that the outer op adds itself: the bias of a convolution."""
    if row.words.isdisjoint(launch.words.words) or not set(row.sizes) <= set(launch.sizes):
        return False
    return max(row.sizes, default=0) == max(launch.sizes, default=0)


def _events(graph: CallGraph, launch: Launch, row: Row, number: int) -> Iterator[dict[str, Any]]:
    """The op as the model calls it, the op inside it, the launch, the kernel; every third kernel has no id of an op."""
    kind = graph.op_kinds[graph.ops.kind[launch.ops[0]]] if graph.ops is not None else None
    assert kind is not None
    name = packet_of(kind.name).replace("aten.", "aten::")
    start_us, outer, inner = number * HOST_US + 1, 2 * number + 1, 2 * number + 2
    dims = [list(meta.shape) for meta in kind.inputs]
    yield _event("cpu_op", name, start_us, 8.0, {"External id": outer, "Input Dims": dims})
    shapes = [list(shape) for shape in row.shapes]
    yield _event("cpu_op", row.op, start_us + 1, 6.0, {"External id": inner, "Input Dims": shapes})
    yield _event("cuda_runtime", "cudaLaunchKernel", start_us + 2, 1.0, {"correlation": number})
    arguments = {"correlation": number, "device": 0, "stream": 7, **({"External id": inner} if number % 3 else {})}
    kernel = _event("kernel", row.kernel, 1e6 + number * 1e5, row.median_us, arguments)
    yield {**kernel, "pid": 0, "tid": 7}


def _event(category: str, name: str, start_us: float, duration_us: float, arguments: dict[str, Any]) -> dict[str, Any]:
    place = {"pid": 1, "tid": 1, "ts": start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": arguments}


def without_host(recording: Recording) -> Recording:
    """Only names and times, as a replay of a CUDA graph leaves them."""
    return replace(recording, work=tuple(replace(kernel, op=-1) for kernel in recording.work), ops=())
