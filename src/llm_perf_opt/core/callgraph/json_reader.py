"""A call graph out of a file that nobody vouches for: a sound graph, or an error that says where and why not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from llm_perf_opt.core.callgraph import json_details
from llm_perf_opt.core.callgraph.column_shapes import shape_problems
from llm_perf_opt.core.callgraph.graph import SCHEMA_VERSION, CallGraph, Coverage, Observation, StagePaths
from llm_perf_opt.core.callgraph.json_fields import (
    by_key,
    counts,
    each,
    free_form,
    integer,
    malformed,
    record,
    text,
    texts,
)
from llm_perf_opt.core.callgraph.json_metas import MetaReader
from llm_perf_opt.core.callgraph.json_text import SEAL_KEY, check_seal, parse_strictly
from llm_perf_opt.core.callgraph.records import Json, OracleAnswer
from llm_perf_opt.core.errors import PerfOptError

MAX_FILE_BYTES = 2**29  # about eight million ops; parsing takes some thirty times as much memory at worst

_REQUIRED = ("schema_version", "call_counts", "edges")
_OPTIONAL = frozenset(
    "tool_version library_versions model workload deployment phase tracer stages runtime oracle_answers stopped_in "
    "notes coverage root_calls op_call_counts module_children module_types constructor_params input_metadata "
    "output_metadata events "
    f"paths tensor_metas part_kinds op_kinds ops calls storages parameters {SEAL_KEY}".split()
)


def read_callgraph(path: Path) -> CallGraph:
    """The graph in the file. One with a seal must be as it was written; any other must agree with itself."""
    raw = _read_bytes(path)
    try:
        document = parse_strictly(raw)
        graph = _graph(document)
        if SEAL_KEY in document:
            check_seal(raw, document[SEAL_KEY])
        else:
            _refuse(graph.problems())
    except PerfOptError as error:
        raise PerfOptError(f"{path}: {error.what}", why=error.why, fix=error.fix) from error
    return graph


def from_json_dict(document: Json) -> CallGraph:
    """The graph in a parsed document, which must agree with itself; a seal covers bytes and is not looked at."""
    graph = _graph(document)
    _refuse(graph.problems())
    return graph


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise PerfOptError(
                f"There is no call-graph file at {path}.",
                why="nothing is there, or not a file",
                fix="check the name, or trace the model",
            )
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PerfOptError(f"{path} could not be read.", why=str(error), fix="check the permissions") from error
    if len(raw) > MAX_FILE_BYTES:
        raise PerfOptError(
            f"{path} is larger than {MAX_FILE_BYTES:,} bytes.",
            why="a trace of a million ops takes about a tenth of that, and a file beyond it could exhaust the memory",
            fix="check that it is a call graph; trace one phase at a time",
        )
    return raw


def _refuse(problems: list[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise PerfOptError(
            "The call-graph file contradicts itself.",
            why="; ".join(problem[:300] for problem in problems[:3]) + more,
            fix="trace the model again, or restore the file from a copy",
        )


def _graph(document: Json) -> CallGraph:
    _require_known_version(document)
    document = record(document, "the top level", _REQUIRED, _OPTIONAL)
    read_meta = MetaReader()
    metas = json_details.read_tensor_metas(document, read_meta)
    graph = CallGraph(
        tool_version=text(document.get("tool_version", ""), "tool_version"),
        library_versions=by_key(document.get("library_versions", {}), "library_versions", text),
        model=text(document.get("model", ""), "model"),
        workload=free_form(document.get("workload", {}), "workload"),
        deployment=free_form(document.get("deployment", {}), "deployment"),
        phase=text(document.get("phase", ""), "phase"),
        tracer=text(document.get("tracer", ""), "tracer"),
        stages=tuple(each(document.get("stages", []), "stages", _stage)),
        runtime=free_form(document.get("runtime", {}), "runtime"),
        oracle_answers=tuple(each(document.get("oracle_answers", []), "oracle_answers", _oracle_answer)),
        stopped_in=_optional_text(document.get("stopped_in"), "stopped_in"),
        notes=texts(document.get("notes", []), "notes"),
        coverage=_coverage(document),
        call_counts=counts(document["call_counts"], "call_counts"),
        root_calls=counts(document.get("root_calls", {}), "root_calls"),
        edges=counts(document["edges"], "edges"),
        op_call_counts=counts(document.get("op_call_counts", {}), "op_call_counts"),
        module_children=by_key(document.get("module_children", {}), "module_children", texts),
        module_types=by_key(document.get("module_types", {}), "module_types", text),
        constructor_params=by_key(document.get("constructor_params", {}), "constructor_params", free_form),
        input_metadata=_metadata(document, "input_metadata", read_meta),
        output_metadata=_metadata(document, "output_metadata", read_meta),
        events=tuple(each(document.get("events", []), "events", _event)),
        paths=texts(document.get("paths", []), "paths"),
        tensor_metas=metas,
        op_kinds=json_details.read_op_kinds(document, metas),
        ops=json_details.read_ops(document),
        calls=json_details.read_calls(document),
        storages=json_details.read_storages(document),
        parameters=json_details.read_parameters(document, metas),
    )
    _refuse(list(islice(shape_problems(graph), 20)))
    return graph


def _require_known_version(document: Json) -> None:
    if type(document) is not dict:
        raise malformed("the top level", "an object", document)
    version = document.get("schema_version")
    if type(version) is not int:
        raise malformed("schema_version", "a whole number", version)
    if version != SCHEMA_VERSION:
        raise PerfOptError(
            f"The call-graph file has schema version {_short(version)}, this program reads version {SCHEMA_VERSION}.",
            why="a key may mean something else in another version",
            fix="use the version of llm-perf-opt that wrote it, or trace the model again",
        )


def _short(version: int) -> str:
    return str(version) if abs(version) < 10**9 else "out of range"


def _stage(value: Json, where: str) -> StagePaths:
    stage = record(value, where, ("name", "paths"))
    return text(stage["name"], f"{where}.name"), texts(stage["paths"], f"{where}.paths")


def _oracle_answer(value: Json, where: str) -> OracleAnswer:
    answer = record(value, where, ("op", "policy", "site", "count"))
    return OracleAnswer(
        op=text(answer["op"], f"{where}.op"),
        policy=text(answer["policy"], f"{where}.policy"),
        site=text(answer["site"], f"{where}.site"),
        count=integer(answer["count"], f"{where}.count", low=1),
    )


def _optional_text(value: Json, where: str) -> str | None:
    return None if value is None else text(value, where)


def _coverage(document: Mapping[str, Json]) -> Coverage | None:
    if "coverage" not in document:
        return None
    value = record(document["coverage"], "coverage", ("ops", "op_kinds"))
    return Coverage(ops=integer(value["ops"], "coverage.ops"), op_kinds=integer(value["op_kinds"], "coverage.op_kinds"))


def _metadata(document: Mapping[str, Json], key: str, read_meta: MetaReader) -> dict[str, tuple[Observation, ...]]:
    def read_one(value: Json, where: str) -> Observation:
        observation = record(value, where, ("tensors", "calls"))
        return Observation(
            tensors=tuple(each(observation["tensors"], f"{where}.tensors", read_meta)),
            calls=integer(observation["calls"], f"{where}.calls", low=1),
        )

    def read_all(value: Json, where: str) -> tuple[Observation, ...]:
        return tuple(each(value, where, read_one))

    return by_key(document.get(key, {}), key, read_all)


def _event(value: Json, where: str) -> tuple[str, str]:
    event = texts(value, where)
    if len(event) != 2 or event[0] not in ("enter", "exit"):
        raise malformed(where, '["enter" or "exit", path]', value)
    return event[0], event[1]
