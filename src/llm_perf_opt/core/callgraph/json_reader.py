"""A call graph out of a file that nobody vouches for: a sound graph, or an error that says where and why not."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.graph import SCHEMA_VERSION, CallGraph, shape_problems
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Coverage,
    Json,
    Observation,
    OpColumns,
    OpKind,
    OracleAnswer,
    Parameter,
    StorageColumns,
    TensorMeta,
    require_safe,
)
from llm_perf_opt.core.output_files import check_seal
from llm_perf_opt.core.reading import FileKind, all_filled, decode_json, filled, naming_file, read_bytes

if TYPE_CHECKING:
    from llm_perf_opt.core.callgraph import json_layout as layout

CALLGRAPH_FILE = FileKind(
    name="call-graph file",
    fix="check the name, trace the model again, or restore the file from a copy",
    schema_version=SCHEMA_VERSION,
    max_bytes=2**29,  # about eight million ops
    max_elements=2**27,
)
_WRITTEN_HERE = b'{"schema_version":'  # how every file of this program begins
_MAX_PARTS = 10_000  # ops in one composite, all levels together: parts of parts could otherwise multiply without end
_MAX_PART_LEVELS = 16
_MOST_ELEMENTS = 2**63  # of a tensor, also one with an empty dimension: torch counts them in 64 bits

T = TypeVar("T")


def read_callgraph(path: Path) -> CallGraph:
    """The graph in the file. One with a seal must be as it was written; any other must agree with itself.

    A file from before there were versions is read too, with the runtime log in the same folder; its notes say so.
    """
    raw = read_bytes(path, CALLGRAPH_FILE)
    with naming_file(path):
        if not raw.startswith(_WRITTEN_HERE) and (older := _older(raw, path)) is not None:
            return _sound_graph(older)
        file = _decoded(raw)
        graph = _GraphReader(file).graph()
        if isinstance(file.content_sha256, str):
            check_seal(raw, CALLGRAPH_FILE)
        else:
            _refuse(graph.problems())
    return graph


def from_json_dict(document: Json) -> CallGraph:
    """The graph in a parsed document, which must agree with itself; a seal covers bytes and is not looked at."""
    try:
        text = json.dumps(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise CALLGRAPH_FILE.refusal("is not valid JSON", str(error)[:300]) from None
    raw = text.encode()
    return _sound_graph(_older(raw) or raw)


def sealed_callgraph(raw: bytes) -> CallGraph:
    """The graph in a text that this program wrote; the caller has checked its digest, so it is decoded once."""
    import msgspec

    from llm_perf_opt.core.callgraph.json_layout import CallGraphFile, column_from_deltas

    try:
        file = msgspec.json.decode(raw, type=CallGraphFile, dec_hook=column_from_deltas)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CALLGRAPH_FILE.refusal("is not as it is written here", str(error)[:300]) from None
    return _GraphReader(file).graph()


def _sound_graph(raw: bytes) -> CallGraph:
    graph = _GraphReader(_decoded(raw)).graph()
    _refuse(graph.problems())
    return graph


def _older(raw: bytes, path: Path | None = None) -> bytes | None:
    """The text in the present form if it is one of before there were versions, with the log next to its file."""
    # Loaded for such files alone: no other command waits for them.
    from llm_perf_opt.core.callgraph.older_files import is_older, present_document
    from llm_perf_opt.core.callgraph.runtime_log import log_in_folder_of

    if not is_older(raw):
        return None
    return json.dumps(present_document(raw, *([], ()) if path is None else log_in_folder_of(path))).encode()


def _decoded(raw: bytes) -> layout.CallGraphFile:
    from llm_perf_opt.core.callgraph.json_layout import CallGraphFile, column_from_deltas

    return decode_json(raw, CallGraphFile, CALLGRAPH_FILE, hook=column_from_deltas)


def _refuse(problems: list[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CALLGRAPH_FILE.refusal("contradicts itself", "; ".join(problem[:300] for problem in problems[:3]) + more)


@dataclass(frozen=True, slots=True)
class _SizedKind:
    kind: OpKind
    ops: int  # itself and every part, all levels together
    levels: int


class _GraphReader:
    """From the rows of a file to the records that they stand for; each distinct tensor is made once."""

    def __init__(self, file: layout.CallGraphFile) -> None:
        self._file = file
        self._known: dict[layout.Tensor, TensorMeta] = {}
        self._metas = self._tensors(file.tensor_metas)

    def graph(self) -> CallGraph:
        """The whole graph, after a check that its columns fit together."""
        file = self._file
        for name in ("workload", "deployment", "runtime"):
            require_safe(getattr(file, name), name, CALLGRAPH_FILE)
        for path, params in file.constructor_params.items():
            require_safe(params, f"constructor_params[{path[:80]!r}]", CALLGRAPH_FILE)
        graph = filled(
            CallGraph,
            file,
            stages=tuple((stage.name, stage.paths) for stage in file.stages),
            oracle_answers=all_filled(OracleAnswer, file.oracle_answers),
            coverage=filled(Coverage, file.coverage) if file.coverage else None,
            input_metadata=self._observations(file.input_metadata),
            output_metadata=self._observations(file.output_metadata),
            events=tuple(self._events()),
            tensor_metas=self._metas,
            op_kinds=self._op_kinds(),
            ops=OpColumns(**_columns(file.ops)) if file.ops else None,
            calls=CallColumns(**_columns(file.calls)) if file.calls else None,
            storages=self._storages(),
            parameters=tuple(self._parameters()),
        )
        _refuse(list(islice(shape_problems(graph), 20)))
        return graph

    def _tensors(self, rows: tuple[layout.Tensor, ...]) -> tuple[TensorMeta, ...]:
        known = self._known
        for row in rows:
            if row not in known:
                if math.prod(size or 1 for size in row.shape) > _MOST_ELEMENTS:
                    raise CALLGRAPH_FILE.malformed("a tensor", "at most 2^63 elements", list(row.shape))
                known[row] = TensorMeta(row.shape, row.dtype, row.device)
        return tuple(known[row] for row in rows)

    def _observations(
        self, metadata: dict[str, tuple[layout.ObservationRow, ...]]
    ) -> dict[str, tuple[Observation, ...]]:
        return {
            path: tuple(Observation(tensors=self._tensors(row.tensors), calls=row.calls) for row in rows)
            for path, rows in metadata.items()
        }

    def _events(self) -> Iterator[tuple[str, str]]:
        """Event and path; where a file says more, its parents and numbers are those that the order implies."""
        open_paths: list[str] = []
        for index, row in enumerate(self._file.events):
            event, path = row if isinstance(row, tuple) else (row.event, row.path)
            if event == "exit" and open_paths:
                open_paths.pop()
            expected = open_paths[-1] if open_paths else None, index
            if not isinstance(row, tuple) and (row.parent, row.index) != expected:
                what = f"the parent {expected[0]!r} and the index {index}"
                raise CALLGRAPH_FILE.malformed(f"events[{index}]", what, {"parent": row.parent, "index": row.index})
            if event == "enter":
                open_paths.append(path)
            yield event, path

    def _op_kinds(self) -> tuple[OpKind, ...]:
        """The distinct ops; parts come from a table of their own, in which a part follows the parts it is made of."""
        parts: list[_SizedKind] = []
        for index, row in enumerate(self._file.part_kinds):
            parts.append(self._kind(row, f"part_kinds[{index}]", parts))
        rows = enumerate(self._file.op_kinds)
        return tuple(self._kind(row, f"op_kinds[{index}]", parts).kind for index, row in rows)

    def _kind(self, row: layout.KindRow, where: str, known: list[_SizedKind]) -> _SizedKind:
        parts = _rows_of(known, row.parts, f"{where}.parts")
        ops = 1 + sum(part.ops for part in parts)
        levels = 1 + max((part.levels for part in parts), default=0)
        if ops > _MAX_PARTS or levels > _MAX_PART_LEVELS:
            limit = f"at most {_MAX_PARTS} parts on {_MAX_PART_LEVELS} levels"
            raise CALLGRAPH_FILE.malformed(f"{where}.parts", limit, list(row.parts))
        require_safe(row.arguments, f"{where}.arguments", CALLGRAPH_FILE)
        kind = filled(
            OpKind,
            row,
            inputs=_rows_of(self._metas, row.inputs, f"{where}.inputs"),
            outputs=_rows_of(self._metas, row.outputs, f"{where}.outputs"),
            parts=tuple(part.kind for part in parts),
        )
        return _SizedKind(kind, ops, levels)

    def _storages(self) -> StorageColumns | None:
        table = self._file.storages
        if not table:
            return None
        return filled(StorageColumns, table, origin=_rows_of(ORIGINS, table.origin, "storages.origin"))

    def _parameters(self) -> Iterator[Parameter]:
        table = self._file.parameters
        if not table:
            return
        lengths = [len(column) for column in (table.name, table.meta, table.storage, table.is_buffer)]
        if len(set(lengths)) > 1:
            raise CALLGRAPH_FILE.malformed("parameters", f"columns of {lengths[0]} rows", lengths)
        metas = _rows_of(self._metas, table.meta, "parameters.meta")
        are_buffers = _rows_of((False, True), table.is_buffer, "parameters.is_buffer")
        for name, meta, storage, is_buffer in zip(table.name, metas, table.storage, are_buffers, strict=True):
            yield Parameter(name=name, meta=meta, storage=storage, is_buffer=is_buffer)


def _columns(table: layout.OpsTable | layout.CallsTable) -> dict[str, array[int]]:
    """Every column that the file has."""
    columns = ((name, getattr(table, name)) for name in table.__struct_fields__)
    return {name: column for name, column in columns if isinstance(column, array)}


def _rows_of(table: Sequence[T], rows: Sequence[int], where: str) -> tuple[T, ...]:
    if rows and not (min(rows) >= 0 and max(rows) < len(table)):
        raise CALLGRAPH_FILE.malformed(where, f"rows of a table of {len(table)}", max(rows))
    return tuple(map(table.__getitem__, rows))
