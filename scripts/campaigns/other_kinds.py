"""A kind of file: a good one, how the program reads it, and what is done with the content afterwards."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import read_callgraph, to_json_dict
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.number_ranges import read_range
from llm_perf_opt.core.output_files import sealed_text, split_seal
from llm_perf_opt.core.workload import read_page_size
from llm_perf_opt.harness.weights import load_some_weights
from llm_perf_opt.measurements.read import read_line, read_measured
from llm_perf_opt.serving.engine_process import environment
from llm_perf_opt.serving.engine_process.jobs import TraceAnswer, read_message, write_message
from llm_perf_opt.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.serving.traffic_text import read_declared, read_lengths, read_page_mix
from llm_perf_opt.sweeps.studies import one_writer
from llm_perf_opt.sweeps.studies.parquet_store import MANIFEST, StudyStore, part_name, part_stem, read_manifest
from llm_perf_opt.sweeps.studies.questions import find_question
from llm_perf_opt.sweeps.studies.sql import answer, connection, require_select
from llm_perf_opt.sweeps.studies.study import read_study
from llm_perf_opt.sweeps.studies.study_run import installed_versions
from llm_perf_opt.sweeps.studies.tasks import study_tasks
from scripts.campaigns.verbs import CONFIG, STUDY
from tests.measurements.made_results import genai_perf_result, guidellm_report, vllm_result


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file. `read` gives a value to compare: equal values are equal in meaning."""

    name: str
    good: bytes
    read: Callable[[bytes], object]
    is_sealed: bool = False
    is_json: bool = True
    one_in: int = 1  # of the mutations that other kinds get: reading takes as much longer
    read_as: str = ""  # the kind that its reader takes it for too, where that is another
    also_reads: tuple[str, ...] = ()  # families that its reader takes as well: whole, they are other files, not damage

    @property
    def family(self) -> str:
        """Equal for kinds of which one may lie in the place of the other: then it is another file, and no damage."""
        return self.read_as or self.name.partition(",")[0]


def at(file: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Reads what is given as if it were the content of `file`."""

    def of_content(raw: bytes) -> object:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
        return read(file)

    return of_content


def as_text(read: Callable[[str], object], raw: bytes) -> object:
    """Reads what is given as a word of the command line, which may hold anything but a zero byte."""
    return read(raw.decode("utf-8", "replace").replace("\0", ""))


def small_module() -> nn.Module:
    """Two matmuls: enough for a trace, a page and a picture."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def questions(file: Path) -> object:
    """A trace as it is read, and every answer that it gives or refuses: what a reader lets pass is used here."""
    trace = lpo.load(file)
    asked: tuple[Callable[[], object], ...] = (
        lambda: trace.graph().draw("text"),
        lambda: trace.graph(ungrouped=True).draw("json"),
        lambda: trace.cost(("counted",)).to_dict(),
        lambda: trace.memory().to_dict(),
        lambda: trace.predict("h100-sxm").to_dict(),
        lambda: trace.compare(trace).to_dict(),
    )
    return [to_json_dict(graph) for graph in trace.graphs], [_answered(ask) for ask in asked]


def function_questions(file: Path) -> object:
    """A function as it is read, evaluated in every cell, at points it does not hold, and as the trace of a point."""
    function = lpo.load_function(file)
    asked: list[Callable[[], object]] = []
    for phase in function.phases:
        low = {name: ends[0] for name, ends in phase.domain.items()}
        beyond = {name: [ends[1] + 1] for name, ends in phase.domain.items()}
        for cell in phase.cells:
            corners = {name: list(ends) for name, ends in cell.region.items()}
            asked.append(partial(_figures, function, phase.phase, corners))
        asked.append(partial(_figures, function, phase.phase, beyond))
        asked.append(partial(_point_of, function, **low))
    return [_answered(ask) for ask in asked]


def _figures(function: lpo.TraceFunction, phase: str, points: dict[str, list[int]]) -> object:
    return {name: column.tolist() for name, column in function.figures(phase, points).items()}


def _point_of(function: lpo.TraceFunction, **point: int) -> object:
    trace = function.at(**point)
    return [to_json_dict(graph) for graph in trace.graphs], trace.cost(("counted",)).to_dict()


def _answered(ask: Callable[[], object]) -> object:
    """A question may be refused with a reason: a file may know too little for it."""
    try:
        return ask()
    except PerfOptError as error:
        if not (error.what and error.why and error.fix):
            raise ValueError(f"a refusal without a reason: {error}") from error
        return str(error)


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
    return [*_recordings(folder), *_older(folder), *_weights_of_a_part(folder)]


def _recordings(folder: Path) -> Iterator[Kind]:
    trace = lpo.trace(small_module(), (torch.zeros(2, 8),))

    def joined(file: Path) -> object:
        answer = trace.join(file)
        return answer.to_dict(), answer.report()

    chrome = json.dumps(chrome_trace()).encode()
    rows = [{**dict(zip(_HEADING, cells, strict=True)), "Device": f"{GPU} (0)"} for cells in _TABLE]
    text = ",".join((*_HEADING, "Device")) + "\n" + "".join(f'{a},{b},"{c}",{GPU} (0)\n' for a, b, c in _TABLE)
    place = folder / "recorded"
    yield Kind("Chrome trace", chrome, at(place / "trace.json", joined))
    yield Kind(
        "Chrome trace, packed", gzip.compress(chrome, mtime=0), at(place / "trace.json.gz", joined), is_json=False
    )
    yield Kind(
        "Nsight database", nsight_database(folder / "made.sqlite"), at(place / "report.sqlite", joined), is_json=False
    )
    yield Kind("Nsight table, JSON", json.dumps(rows).encode(), at(place / "table.json", joined))
    yield Kind("Nsight table, CSV", text.encode(), at(place / "table.csv", joined), is_json=False)


_HEADING = ("Start (ns)", "Duration (ns)", "Name")
_TABLE = [(start_ns, duration_ns, name) for name, start_ns, duration_ns in KERNELS]


def chrome_trace() -> dict[str, Any]:
    """As torch.profiler writes it, of two matmuls: one step, modules, ops with shapes, launches and kernels."""
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
            f"older call graph, {name}",
            json.dumps(document).encode(),
            at(folder / f"older{number}" / "dsocr-call-graph.json", questions),
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
        "runtime log of an older call graph",
        json.dumps(RUNTIME_LOG).encode(),
        at(beside / "dsocr-runtime-metadata.json", with_log),
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
    yield Kind("weights of a part", content, read, is_json=False)
    yield Kind(
        "weights of a part, header alone", header.rstrip(), lambda raw: read(struct.pack("<Q", len(raw)) + raw + values)
    )
    yield Kind("weights of a part, index", index, at(shard.parent / "model.safetensors.index.json", filled))


METRICS = b"""vllm:time_to_first_token_seconds_bucket{le="0.04",model_name="tiny"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.08",model_name="tiny"} 20.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="tiny"} 20.0
vllm:request_success_total{finished_reason="length",model_name="tiny"} 20.0
vllm:prompt_tokens_total{model_name="tiny"} 1280.0
vllm:generation_tokens_total{model_name="tiny"} 240.0
"""
_STEP = "Iteration({}): 0 context requests, 0 context tokens, 4 generation requests, 4 generation tokens, "
STEPS = "".join(f"{_STEP.format(number)}iteration elapsed time: 12.{number} ms\n" for number in range(5)).encode()
BENCH_SERVE: dict[str, Any] = {
    "input_lens": [64, 128, 32],
    "output_lens": [12, 0, 7],
    "start_times": [105.0, 105.5, 104.0],
    "request_rate": 2.0,
    "max_concurrency": None,
}
MOONCAKE = b"""{"timestamp": 3000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 9]}
{"timestamp": 1000, "input_length": 1200, "output_length": 10, "hash_ids": [1, 2, 5]}
"""
AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
DISTRIBUTION = b'rate = "20/s"\ncv = 2.5\nprompt = "uniform(100, 900)"\noutput = 50\nrequests = 30\n'


def served_kinds(folder: Path) -> list[Kind]:
    return [*_read_from_files(folder), *_lines(LINES), *_processes(folder)]


def _by_name(read: Callable[[str], object]) -> Callable[[Path], object]:
    return lambda file: read(str(file))


SERVED: dict[str, tuple[str, dict[str, Any] | bytes, Callable[[Path], object]]] = {  # kind -> file, content, reader
    "measurement, vllm bench serve": ("run.json", vllm_result(), read_measured),
    "measurement, genai-perf": ("run.json", genai_perf_result(), read_measured),
    "measurement, guidellm": ("run.json", guidellm_report(), read_measured),
    "measurement, metrics of vLLM": ("run.txt", METRICS, read_measured),
    "measurement, log of steps": ("run.log", STEPS, read_measured),
    "measurement, TOML": (
        "run.toml",
        b'ttft = "0.5s"\ntpot_ms = 20\nbatch = 16\nmodel = "org/name"\n',
        read_measured,
    ),
    "measurement, CSV": ("run.csv", b"ttft_ms,tpot_ms,concurrency,input_len\n480,20,16,2048\n", read_measured),
    "traffic, vllm bench serve": ("traffic.json", BENCH_SERVE, as_traffic),
    "traffic, lines.jsonl": ("lines.jsonl", MOONCAKE, read_traffic),
    "traffic, table.csv": ("table.csv", AZURE, read_traffic),
    "traffic, distribution.toml": ("distribution.toml", DISTRIBUTION, read_traffic),
    "list of lengths": ("lengths.txt", b"100\n200\n3000\n", _by_name(read_lengths)),
    "list of page sizes": ("pages.txt", b"A4@150dpi,70\n1240x1754,30  # scans\n", _by_name(read_page_mix)),
}


def _read_from_files(folder: Path) -> Iterator[Kind]:
    for name, (file, content, read) in SERVED.items():
        is_json = isinstance(content, dict)
        good = content if isinstance(content, bytes) else json.dumps(content).encode()
        yield Kind(name, good, at(folder / "served" / file, read), is_json=is_json)


def _lines(lines: Mapping[str, tuple[str, Callable[[str], object]]], one_in: int = 1) -> Iterator[Kind]:
    """Texts of the command line."""
    for name, (good, read) in lines.items():
        yield Kind(name, good.encode(), partial(as_text, read), is_json=False, one_in=one_in)


def _drawn(text: str) -> object:
    """The first requests: what a distribution lets pass is drawn from here."""
    declared = read_declared(text)
    return declared, declared.traffic().requests[:20]


LINES: dict[str, tuple[str, Callable[[str], object]]] = {
    "line of traffic": (
        "20/s cv=2 prompt=lognormal(800,0.8) output=200 prefixes=8x512@0.7 sessions:turns=3,grow=50,think=2s for 60s",
        _drawn,
    ),
    "line of figures": ("ttft=0.5s tpot=20ms batch=16 input_tokens=2048", lambda text: read_line(text, "x")),
    "range of numbers": ("1k..128k", lambda text: read_range(text, "context")),
    "size of a page": ("A4@150dpi", read_page_size),
}


def _processes(folder: Path) -> Iterator[Kind]:
    file = folder / "message"
    write_message(file, TraceAnswer(files=["prefill.json"], configure_s=1.5, run_s=0.25, notes=["a note"]))
    good = file.read_bytes()
    read = at(folder / "messages" / "reply", lambda path: read_message(path, TraceAnswer))
    yield Kind("message of an engine's process", good, read, is_json=False)
    yield Kind("name of vLLM's Python", b"python-of-vllm/bin/python", _python_of_vllm, is_json=False)


def _python_of_vllm(raw: bytes) -> object:
    """A variable that names a file which is no Python: refused, and nothing is started."""
    named = os.fsdecode(raw.replace(b"\0", b"")) or "x"
    with mock.patch.dict(os.environ, {environment.VLLM.variable: named}), suppress(UsageError):
        return environment.find()
    return "refused"


STUDY_FILE = b"""name: tiny
models: [org/name, tiny]
workload: {users: 2, input: 1k..8k, output: 16}
deployments: {plan: [one device, tp2], weights: [checkpoint, fp8]}
gpus: [h100-sxm]
prices: {h100-sxm: 2.5}
"""
ALL = "select * from points order by inputs_hash, global_batch, asked_context"
SQL = (
    "select model, count(*) as n, min(tpot_s) from points where global_batch > 1 group by model order by n desc limit 9"
)
QUESTION = "cheapest plan under 50 ms TPOT for tiny on h100-sxm with fp8"


def study_kinds(folder: Path) -> list[Kind]:
    """All of them, on the results of one study of a tiny model."""
    place = folder / "studied"
    (place / "tiny").mkdir(parents=True)
    (place / "tiny" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (place / "study.yaml").write_text(json.dumps(STUDY), "utf-8")
    lpo.study(place / "study.yaml", out=place / "results", workers=1)
    return [*_declared(place), *_parts(place / "results"), *_manifests(place / "results"), *_asked(place), _lease()]


def _declared(place: Path) -> Iterator[Kind]:
    def declared(file: Path) -> object:
        study = read_study(file)
        return study_tasks(study, installed_versions(is_replayed=bool(study.traffics)))

    yield Kind("study file", STUDY_FILE, at(place / "other.yaml", declared), is_json=False)

    override = ("workload.users=1,8", lambda text: read_study(place / "study.yaml", [text]))
    yield from _lines({"override of a study": override})


def _rows(results: Path, sql: str, parameters: Mapping[str, Any] | None = None) -> object:
    """With their columns; as a text, since NaN is not equal to itself."""
    with connection(StudyStore(str(results)), ("tiny",)) as opened:
        table = answer(opened, sql, parameters)
        return table.columns, repr(table.rows())


def _points_with(results: Path, file: Path, good: bytes, raw: bytes) -> object:
    """The points while a file of the study holds other bytes."""
    try:
        file.write_bytes(raw)
        return _rows(results, ALL)
    finally:
        file.write_bytes(good)


def _parts(results: Path) -> Iterator[Kind]:
    """A part as it was written, and one that somebody changed who made its name and the list fit again."""
    listed = results / "study=tiny" / MANIFEST
    manifest = read_manifest(listed.read_bytes())
    stem, part = next(iter(manifest.parts.items()))
    file = listed.parent / part.file
    good, written = file.read_bytes(), listed.read_bytes()

    def made_to_fit(raw: bytes) -> object:
        digest = hashlib.sha256(raw).hexdigest()
        name = part_name(stem, manifest.run, digest, failed=False)
        other = replace(part, file=f"{Path(part.file).parent}/{name}", sha256=digest)
        try:
            (file.parent / name).write_bytes(raw)
            listed.write_bytes(replace(manifest, parts={**manifest.parts, stem: other}).text())
            return _rows(results, ALL)
        finally:
            if name != file.name:
                (file.parent / name).unlink()
            listed.write_bytes(written)

    assert part_stem(file.name) == stem, "it is named by its task"
    made = partial(Kind, good=good, is_json=False, one_in=2)  # a database is opened for each
    yield made("part of a study", read=partial(_points_with, results, file, good), is_sealed=True)
    yield made("part of a study, with a new digest", read=made_to_fit)


def _manifests(results: Path) -> Iterator[Kind]:
    listed = results / "study=tiny" / MANIFEST
    good = listed.read_bytes()

    read = partial(_points_with, results, listed, good)

    def sealed_anew(raw: bytes) -> object:
        try:
            return read(sealed_text(raw.decode("utf-8", "replace")).encode())
        except ValueError:  # no object, on which there is no place for a seal
            return read(raw)

    yield Kind("manifest of a study", good, read, is_sealed=True, is_json=False, one_in=2)
    yield Kind("manifest of a study, sealed anew", split_seal(good)[0], sealed_anew, one_in=2)


def _asked(place: Path) -> Iterator[Kind]:
    """Texts of `ask`, answered by the database as that does it."""

    def selected(text: str) -> object:
        require_select(text)
        return _rows(place / "results", text)

    def named(text: str) -> object:
        question = find_question(text)
        return _rows(place / "results", question.sql, question.parameters)

    yield from _lines({"line of SQL": (SQL, selected), "question to a study": (QUESTION, named)}, one_in=2)


def _lease() -> Kind:
    """Of a run that is dead, whatever it holds: the next run takes the study over."""
    store = StudyStore("memory://leases")
    folder = store.folder("tiny")

    def taken(raw: bytes) -> object:
        files = store.filesystem
        with mock.patch.object(one_writer, "DEAD_S", 0.0):
            if files.exists(folder):
                files.rm(folder, recursive=True)
            files.makedirs(folder)
            files.pipe_file(f"{folder}/_lease-00000001.json", raw)
            return one_writer._taken(store, folder, "01234567").number

    good = one_writer.Lease(store=store, folder=folder, number=1, run="89abcdef").text()
    return Kind("lease of a study", good, taken)
