"""A call graph as one JSON document: the contract in explicit form, the columns as tables of small integers.

A column is written as its first value followed by the differences between neighbours. Storages, calls and op numbers
mostly grow by little, so a million ops take tens of megabytes and no compression has to be undone to read them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import islice
from operator import sub
from pathlib import Path

from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import events_of
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Json,
    Observation,
    OpColumns,
    OpKind,
    Parameter,
    StorageColumns,
    TensorMeta,
)
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import sealed_lines, write_whole


def write_callgraph(graph: CallGraph, path: Path, *, overwrite: bool, with_events: bool = False) -> None:
    """Write the file as a whole or not at all: it appears under its name only when complete.

    `with_events` adds the chronological `events`, which the calls imply already.
    """
    if path.exists() and not overwrite:
        raise PerfOptError(
            f"{path} exists.",
            why="a trace is never overwritten silently",
            fix="choose another name, or ask to overwrite",
        )
    write_whole(path, sealed_lines(to_json_dict(graph, with_events=with_events)))


def to_json_dict(graph: CallGraph, *, with_events: bool = False) -> dict[str, Json]:
    """The document as plain dicts, lists and numbers. Keys that hold nothing are there too, so that a reader sees them.

    Left out are the details a tracer did not see (`ops`, `calls`, `storages`, `coverage`) and `events` not asked for.
    """
    document = _header(graph) | {
        "call_counts": dict(graph.call_counts),
        "root_calls": dict(graph.root_calls),
        "edges": dict(graph.edges),
        "op_call_counts": dict(graph.op_call_counts),
        "module_children": {path: list(children) for path, children in graph.module_children.items()},
        "module_types": dict(graph.module_types),
        "constructor_params": {path: dict(params) for path, params in graph.constructor_params.items()},
        "input_metadata": _observations(graph.input_metadata),
        "output_metadata": _observations(graph.output_metadata),
    }
    events = events_of(graph) if with_events else graph.events
    if events:
        document["events"] = list(_events(events))
    return document | _Details(graph).as_json()


def _events(events: Iterable[tuple[str, str]]) -> Iterator[dict[str, Json]]:
    open_paths: list[str] = []
    for index, (event, path) in enumerate(events):
        if event == "exit" and open_paths:
            open_paths.pop()
        yield {"event": event, "path": path, "parent": open_paths[-1] if open_paths else None, "index": index}
        if event == "enter":
            open_paths.append(path)


def _header(graph: CallGraph) -> dict[str, Json]:
    header = {
        "schema_version": graph.schema_version,
        "tool_version": graph.tool_version,
        "library_versions": dict(graph.library_versions),
        "model": graph.model,
        "workload": dict(graph.workload),
        "deployment": dict(graph.deployment),
        "phase": graph.phase,
        "tracer": graph.tracer,
        "stages": [{"name": name, "paths": list(paths)} for name, paths in graph.stages],
        "runtime": dict(graph.runtime),
        "oracle_answers": list(map(asdict, graph.oracle_answers)),
        "stopped_in": graph.stopped_in,
        "notes": list(graph.notes),
    }
    if graph.coverage is not None:
        header["coverage"] = asdict(graph.coverage)
    return header


def _observations(metadata: Mapping[str, tuple[Observation, ...]]) -> dict[str, Json]:
    return {
        path: [{"tensors": [_meta(meta) for meta in seen.tensors], "calls": seen.calls} for seen in observations]
        for path, observations in metadata.items()
    }


def _meta(meta: TensorMeta) -> dict[str, Json]:
    return {"shape": list(meta.shape), "dtype": meta.dtype, "device": meta.device}


class _Details:
    """The tables and columns. Metas and part kinds get their rows as they are met; the tables are written last."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._meta_rows = {meta: row for row, meta in enumerate(graph.tensor_metas)}
        self._part_rows: dict[OpKind, int] = {}
        self._part_kinds: list[Json] = []

    def as_json(self) -> dict[str, Json]:
        graph = self._graph
        op_kinds = [self._kind(kind) for kind in graph.op_kinds]
        parameters = self._parameters(graph.parameters)
        details = {
            "paths": list(graph.paths),
            "tensor_metas": [_meta(meta) for meta in self._meta_rows],
            "part_kinds": self._part_kinds,
            "op_kinds": op_kinds,
            "parameters": parameters,
        }
        if graph.ops is not None:
            details["ops"] = _columns(graph.ops)
        if graph.calls is not None:
            details["calls"] = _columns(graph.calls)
        if graph.storages is not None:
            details["storages"] = _storage_columns(graph.storages)
        return details

    def _meta_row(self, meta: TensorMeta) -> int:
        return self._meta_rows.setdefault(meta, len(self._meta_rows))

    def _part_row(self, kind: OpKind) -> int:
        if kind not in self._part_rows:
            as_json = self._kind(kind)
            self._part_rows[kind] = len(self._part_kinds)
            self._part_kinds.append(as_json)
        return self._part_rows[kind]

    def _kind(self, kind: OpKind) -> dict[str, Json]:
        return {
            "name": kind.name,
            "inputs": [self._meta_row(meta) for meta in kind.inputs],
            "outputs": [self._meta_row(meta) for meta in kind.outputs],
            "arguments": dict(kind.arguments),
            "input_names": list(kind.input_names),
            "output_aliases": list(kind.output_aliases),
            "mutates": kind.mutates,
            "parts": [self._part_row(part) for part in kind.parts],
        }

    def _parameters(self, parameters: tuple[Parameter, ...]) -> dict[str, Json]:
        return {
            "name": [parameter.name for parameter in parameters],
            "meta": _deltas(array("q", [self._meta_row(parameter.meta) for parameter in parameters])),
            "storage": _deltas(array("q", [parameter.storage for parameter in parameters])),
            "is_buffer": _deltas(array("q", [parameter.is_buffer for parameter in parameters])),
        }


def _columns(table: OpColumns | CallColumns) -> dict[str, Json]:
    """Every column by its name; the columns of times are left out where nothing was measured."""
    columns = ((field.name, getattr(table, field.name)) for field in fields(table))
    return {name: _deltas(column) for name, column in columns if column or not name.endswith("_ns")}


def _storage_columns(storages: StorageColumns) -> dict[str, Json]:
    numbers = {name: _deltas(getattr(storages, name)) for name in ("bytes", "born_op", "freed_op")}
    return {**numbers, "origin": _deltas(array("q", map(ORIGINS.index, storages.origin)))}


def _deltas(column: array[int]) -> list[int]:
    return [*column[:1], *map(sub, islice(column, 1, None), column)]
