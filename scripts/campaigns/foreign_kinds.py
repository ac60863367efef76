"""Files of other programs: recordings of GPUs, call graphs of older scripts, weights of one part of a model."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import read_callgraph
from llm_perf_opt.harness.weights import load_some_weights
from scripts.campaigns.one_kind import Kind, at, questions, small_module

GPU = "NVIDIA H100 80GB HBM3"
KERNELS = (  # name, start and duration in nanoseconds
    ("ampere_sgemm_32x32_sliced1x4_tn", 200_000, 5_500),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::relu_kernel>(int)", 210_000, 1_250),
    ("ampere_sgemm_32x32_sliced1x4_tn", 220_000, 4_000),
)
OLDER: dict[str, Any] = {
    "call_counts": {"model": 1, "model.sam": 2, "model.layers.0": 1, "model.layers.1": 1},
    "edges": {"model->model.sam": 2, "model->model.layers.0": 1, "model->model.layers.1": 1},
    "op_call_counts": {"model": 3, "model.sam": 8},
    "events": [
        *({"event": "enter", "name": "model", "parent": None, "index": 0},),
        *({"event": word, "name": "model.sam", "index": at} for at, word in enumerate(("enter", "exit") * 2, 1)),
        *({"event": word, "name": "model.layers.0", "index": at} for at, word in enumerate(("enter", "exit"), 5)),
        *({"event": word, "name": "model.layers.1", "index": at} for at, word in enumerate(("enter", "exit"), 7)),
        {"event": "exit", "name": "model", "index": 9},
        {"kind": "vision_inputs", "num_images": 1, "num_crops_total": 4},
    ],
    "module_children": {"model": ["model.sam", "model.layers"], "model.layers": ["model.layers.0", "model.layers.1"]},
    "module_classes": {"model": "Model", "model.sam": "<class 'x.Encoder'>", "model.layers.0": {"class": "Layer"}},
    "constructor_params": {"model.layers.0": {"in_features": 8, "sizes": [1, 2], "eps": 1e-6}},
    "input_metadata": {"model": [{"tensors": [{"shape": [1, 9], "dtype": "torch.int64", "device": "cuda:0"}]}]},
    "output_metadata": {"model.sam": {"shape": "torch.Size([2, 4])", "dtype": "torch.bfloat16", "calls": 2}},
}
OLDER_ROWS: dict[str, Any] = {
    "call_counts": {"self": {"count": 1}, "self.sam:1": {"count": 1}, "self.sam:2": 1, "layers.0": 1.0},
    "edges": [
        {"parent": "self", "child": "sam", "count": 90},
        ["self", "layers.0", 4],
        "sam->sam.block",
        {"source": "layers.0", "target": "layers.0.mlp", "num_passes": 3},
    ],
    "module_children": {"": {"sam": {"class": "Encoder", "children": {"block": "Block"}}, "layers": {"0": "Layer"}}},
    "runtime_metadata": {"events": [{"kind": "llm_stack", "num_layers": 4}]},
    "input_metadata": {"sam": [[[1, 3], [4]], [[1, 3], [4]]]},
}
RUNTIME_LOG: dict[str, Any] = {
    "events": [
        {"kind": "vision_inputs", "module": "Model", "num_images": 2, "image_index": 0, "num_crops": 4},
        {"kind": "vision_inputs", "num_images": 2, "image_index": 1, "num_crops": 0},
        {"kind": "llm_stack", "module": "model.layers", "num_layers": 4},
        {"kind": "decode_steps", "num_steps": 7},
    ]
}


def foreign_kinds(folder: Path) -> list[Kind]:
    """All of them."""
    return [*_recordings(folder), *_older(folder), *_weights_of_a_part(folder)]


def _recordings(folder: Path) -> Iterator[Kind]:
    trace = lpo.trace(small_module(), (torch.zeros(2, 8),))

    def joined(file: Path) -> object:
        answer = trace.join(file)
        return answer.to_dict(), answer.report()

    chrome = json.dumps(chrome_trace()).encode()
    rows = [{**dict(zip(_HEADING, one, strict=True)), "Device": f"{GPU} (0)"} for one in _TABLE]
    text = ",".join((*_HEADING, "Device")) + "\n" + "".join(f'{a},{b},"{c}",{GPU} (0)\n' for a, b, c in _TABLE)
    place = folder / "recorded"
    yield Kind(name="Chrome trace", good=chrome, read=at(place / "trace.json", joined))
    yield Kind(
        name="Chrome trace, packed",
        good=gzip.compress(chrome, mtime=0),
        read=at(place / "trace.json.gz", joined),
        is_json=False,
    )
    yield Kind(
        name="Nsight database",
        good=nsight_database(folder / "made.sqlite"),
        read=at(place / "report.sqlite", joined),
        is_json=False,
    )
    yield Kind(name="Nsight table, JSON", good=json.dumps(rows).encode(), read=at(place / "table.json", joined))
    yield Kind(name="Nsight table, CSV", good=text.encode(), read=at(place / "table.csv", joined), is_json=False)


_HEADING = ("Start (ns)", "Duration (ns)", "Name")
_TABLE = [(start_ns, duration_ns, name) for name, start_ns, duration_ns in KERNELS]


def chrome_trace() -> dict[str, Any]:
    """As torch.profiler writes it, of two products: one step, modules, ops with shapes, launches and kernels."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        _event("user_annotation", "ProfilerStep#3", 0, 100),
        _event("python_function", "nn.Module: Sequential_0", 1, 90),
    ]
    calls = (("aten::linear", [[2, 8], [8, 8], [8]]), ("aten::relu", [[2, 8]]), ("aten::linear", [[2, 8], [4, 8], [4]]))
    for number, ((op, shapes), (name, start_ns, duration_ns)) in enumerate(zip(calls, KERNELS, strict=True)):
        start_us = 2 + 20 * number
        launch = {"correlation": 11 + number}
        arguments = {"External id": number + 1, "Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        on_device = {**launch, "External id": number + 1, "stream": 7, "device": 0}
        events += [
            _event("cpu_op", op, start_us, 15, **arguments),
            _event("cuda_runtime", "cudaLaunchKernel", start_us + 5, 2, **launch),
            _event("kernel", name, start_ns / 1000, duration_ns / 1000, tid=7, **on_device),
        ]
    return {"schemaVersion": 1, "traceEvents": events, "deviceProperties": [{"id": 0, "name": GPU}]}


def _event(category: str, name: str, start_us: float, duration_us: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    place = {"pid": 1, "tid": tid, "ts": start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def nsight_database(file: Path) -> bytes:
    """As `nsys export --type sqlite` writes it: the tables that are read, and one that is not."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        database.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER)")
        database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, "
            "demangledName INTEGER, shortName INTEGER)"
        )
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(name for name, _, _ in KERNELS))
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, 0)",
            [(start_ns, start_ns + duration_ns, number) for number, (_, start_ns, duration_ns) in enumerate(KERNELS)],
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (900, 910, 0)")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, ?)", (GPU,))
        database.commit()
    return file.read_bytes()


def _older(folder: Path) -> Iterator[Kind]:
    events = {"events": OLDER["events"]}
    for number, (name, document) in enumerate({"totals": OLDER, "rows": OLDER_ROWS, "events alone": events}.items()):
        yield Kind(
            name=f"older call graph, {name}",
            good=json.dumps(document).encode(),
            read=at(folder / f"older{number}" / "dsocr-call-graph.json", questions),
            read_as="call graph",
        )
    beside = folder / "older-with-log"
    beside.mkdir()
    graph = beside / "dsocr-call-graph.json"
    graph.write_text(json.dumps(OLDER), "utf-8")

    def with_log(_: Path) -> object:
        """A bad log is left out, and the graph says so."""
        notes = read_callgraph(graph).notes
        return None if any("is left out: " in note for note in notes) else questions(graph)

    yield Kind(
        name="runtime log of an older call graph",
        good=json.dumps(RUNTIME_LOG).encode(),
        read=at(beside / "dsocr-runtime-metadata.json", with_log),
        read_as="call graph",
    )


def _weights_of_a_part(folder: Path) -> Iterator[Kind]:
    """As `export --load-weights DIR` reads them: the tensors of one part, and of the rest the names."""
    from safetensors.torch import save

    weights = {name: tensor.detach().clone() for name, tensor in small_module().state_dict().items()}
    content = save(weights, metadata={"format": "pt"})
    (length,) = struct.unpack("<Q", content[:8])
    header, values = content[8 : 8 + length], content[8 + length :]
    file = folder / "part" / "model.safetensors"
    shard = folder / "indexed-part" / "model-00001-of-00001.safetensors"
    shard.parent.mkdir()
    shard.write_bytes(content)
    index = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, shard.name)}).encode()

    def filled(stored: Path) -> object:
        places = {name: tensor for name, tensor in small_module().state_dict().items() if name.startswith("2.")}
        load_some_weights(places, stored.parent, ("2",))
        return {name: repr(tensor.tolist()) for name, tensor in places.items()}

    read = at(file, filled)
    yield Kind(name="weights of a part", good=content, read=read, is_json=False)
    yield Kind(
        name="weights of a part, header alone",
        good=header.rstrip(),
        read=lambda raw: read(struct.pack("<Q", len(raw)) + raw + values),
    )
    yield Kind(
        name="weights of a part, index", good=index, read=at(shard.parent / "model.safetensors.index.json", filled)
    )
