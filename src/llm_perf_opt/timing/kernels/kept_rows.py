"""Rows of a table that were read once on this machine, as columns that later processes take as they are.

An entry of the cache holds the answer to one question about one Parquet file, so a later process needs no reader of
Parquet. The Parquet file is known by its place, size, time of change, and last bytes, which list every block of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.store import entry_key, find_entry, keep_entry

Columns = Mapping[str, NDArray[Any]]

KIND = "kernel tables"
_ALIGNMENT = 64
_FOOTER_BYTES = 4096


def kept_rows(path: Path, question: object, read: Callable[[], Columns]) -> Columns:
    """What `read` gives, from an earlier process where one read the same columns of the same file."""
    key = entry_key(KIND, {"file": _stamp(path), "question": question})
    columns = find_entry(KIND, key, _columns)
    if columns is None:
        columns = read()
        keep_entry(KIND, key, "/".join(path.parts[-5:]), b"".join(_pieces(columns)), is_packed=False)
    return columns


def _stamp(path: Path) -> list[str | int]:
    status = path.stat()
    with path.open("rb") as file:
        file.seek(max(0, status.st_size - _FOOTER_BYTES))
        footer = hashlib.sha256(file.read()).hexdigest()
    return [str(path), status.st_size, status.st_mtime_ns, footer]


def _pieces(columns: Columns) -> Iterator[bytes]:
    """A line that lists the columns, and the columns, each from a multiple of the alignment on."""
    head = json.dumps([(name, column.dtype.str, len(column)) for name, column in columns.items()]).encode() + b"\n"
    yield head
    place = len(head)
    for column in columns.values():
        yield bytes(_aligned(place) - place)
        yield np.ascontiguousarray(column).tobytes()
        place = _aligned(place) + column.nbytes


def _columns(content: bytes) -> Columns:
    head = content.partition(b"\n")[0]
    start, columns = _aligned(len(head) + 1), {}
    for name, dtype, count in json.loads(head):
        columns[name] = np.frombuffer(content, dtype, count, start)
        start = _aligned(start + columns[name].nbytes)
    return columns


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
