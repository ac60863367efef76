"""The tables and columns of a document: everything below the contract, all of it optional."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TypeVar

from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.json_fields import (
    boolean,
    column,
    each,
    free_form,
    integers,
    malformed,
    record,
    text,
    texts,
)
from llm_perf_opt.core.callgraph.json_metas import MetaReader
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Json,
    OpColumns,
    OpKind,
    Parameter,
    StorageColumns,
    TensorMeta,
)

_KIND_KEYS = ("name", "inputs", "outputs", "arguments", "input_names", "output_aliases", "mutates", "parts")
_MAX_PARTS = 10_000  # ops in one composite, all levels together: parts of parts could otherwise multiply without end
_MAX_PART_LEVELS = 16

T = TypeVar("T")


def read_tensor_metas(document: Mapping[str, Json], read_meta: MetaReader) -> tuple[TensorMeta, ...]:
    """The table that columns and kinds refer to by row."""
    return tuple(each(document.get("tensor_metas", []), "tensor_metas", read_meta))


def read_op_kinds(document: Mapping[str, Json], metas: tuple[TensorMeta, ...]) -> tuple[OpKind, ...]:
    """The distinct ops; their parts come from a table of their own, in which a part follows the parts it is made of."""
    parts: list[_SizedKind] = []
    for index, value in enumerate(each(document.get("part_kinds", []), "part_kinds", _kind_fields)):
        parts.append(_kind(value, f"part_kinds[{index}]", metas, parts))
    kinds = enumerate(each(document.get("op_kinds", []), "op_kinds", _kind_fields))
    return tuple(_kind(value, f"op_kinds[{index}]", metas, parts).kind for index, value in kinds)


@dataclass(frozen=True, slots=True)
class _SizedKind:
    kind: OpKind
    ops: int  # itself and every part, all levels together
    levels: int


def _kind_fields(value: Json, where: str) -> dict[str, Json]:
    return record(value, where, _KIND_KEYS)


def _kind(value: dict[str, Json], where: str, metas: tuple[TensorMeta, ...], known: list[_SizedKind]) -> _SizedKind:
    parts = _rows(value["parts"], f"{where}.parts", known)
    ops = 1 + sum(part.ops for part in parts)
    levels = 1 + max((part.levels for part in parts), default=0)
    if ops > _MAX_PARTS or levels > _MAX_PART_LEVELS:
        raise malformed(f"{where}.parts", f"at most {_MAX_PARTS} parts on {_MAX_PART_LEVELS} levels", value["parts"])
    kind = OpKind(
        name=text(value["name"], f"{where}.name"),
        inputs=_rows(value["inputs"], f"{where}.inputs", metas),
        outputs=_rows(value["outputs"], f"{where}.outputs", metas),
        arguments=free_form(value["arguments"], f"{where}.arguments"),
        input_names=texts(value["input_names"], f"{where}.input_names"),
        output_aliases=integers(value["output_aliases"], f"{where}.output_aliases", low=-1),
        mutates=boolean(value["mutates"], f"{where}.mutates"),
        parts=tuple(part.kind for part in parts),
    )
    return _SizedKind(kind, ops, levels)


def _rows(value: Json, where: str, table: tuple[T, ...] | list[T]) -> tuple[T, ...]:
    rows = integers(value, where)
    if rows and max(rows) >= len(table):
        raise malformed(where, f"rows of a table of {len(table)}", max(rows))
    return tuple(table[row] for row in rows)


def read_ops(document: Mapping[str, Json]) -> OpColumns | None:
    """What ran, if the file holds it."""
    return _columns(OpColumns, document["ops"], "ops") if "ops" in document else None


def read_calls(document: Mapping[str, Json]) -> CallColumns | None:
    """Who called whom, if the file holds it."""
    return _columns(CallColumns, document["calls"], "calls") if "calls" in document else None


def _columns(kind: type[T], value: Json, where: str) -> T:
    known = {field.name: field.default_factory is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    required = [name for name, is_required in known.items() if is_required]
    record(value, where, required, [name for name in known if name not in required])
    return kind(**{name: column(value[name], f"{where}.{name}") for name in known if name in value})


def read_storages(document: Mapping[str, Json]) -> StorageColumns | None:
    """The memory, if the file holds it."""
    if "storages" not in document:
        return None
    value = record(document["storages"], "storages", ("bytes", "born_op", "freed_op", "origin"))
    codes = column(value["origin"], "storages.origin")
    if codes and not (min(codes) >= 0 and max(codes) < len(ORIGINS)):
        raise malformed("storages.origin", f"codes from 0 to {len(ORIGINS) - 1}", max(codes))
    return StorageColumns(
        bytes=column(value["bytes"], "storages.bytes"),
        born_op=column(value["born_op"], "storages.born_op"),
        freed_op=column(value["freed_op"], "storages.freed_op"),
        origin=tuple(map(ORIGINS.__getitem__, codes)),
    )


def read_parameters(document: Mapping[str, Json], metas: tuple[TensorMeta, ...]) -> tuple[Parameter, ...]:
    """The weights and buffers by name."""
    if "parameters" not in document:
        return ()
    value = record(document["parameters"], "parameters", ("name", "meta", "storage", "is_buffer"))
    names = texts(value["name"], "parameters.name")
    columns = [column(value[name], f"parameters.{name}") for name in ("meta", "storage", "is_buffer")]
    if any(len(other) != len(names) for other in columns):
        raise malformed("parameters", f"columns of {len(names)} rows", [len(other) for other in columns])
    for name, rows, end in (("meta", columns[0], len(metas)), ("is_buffer", columns[2], 2)):
        if rows and not (min(rows) >= 0 and max(rows) < end):
            raise malformed(f"parameters.{name}", f"numbers from 0 to {end - 1}", max(rows))
    return tuple(
        Parameter(name=name, meta=metas[meta], storage=storage, is_buffer=bool(is_buffer))
        for name, meta, storage, is_buffer in zip(names, *columns, strict=True)
    )
