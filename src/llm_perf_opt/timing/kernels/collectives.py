"""Collectives on the GPUs of one node by ranks and bytes: the all-reduce of an engine, and the collectives of NCCL.

`message_size` counts elements, not bytes: on the H100 eight ranks reduce 2^29 of them in 4.0 ms, which is 469 GB/s on
the bus with two bytes each and half of what the links give with one. It is the whole buffer: what is reduced, gathered
or scattered over all ranks, or what one rank sends to all. Rows named `eager` pay for a launch from the host and are
left out, as engines replay captured graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.timing.kernels.grid import FAILED, Configurations
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, newest, read_rows, versions
from llm_perf_opt.timing.kernels.times import Estimate, Floats, TableRoofline, TimeOrigin, fastest

_ELEMENT_BYTES = {"bfloat16": 2.0, "half": 2.0, "int8": 1.0}
_LIBRARIES = ("nccl", "oneccl")
CAPTURED = "kernel_source not like '%eager%'"

NCCL_NAMES: Mapping[CollectiveKind, str] = {  # of what was measured, as the NCCL tables name it
    CollectiveKind.ALL_REDUCE: "all_reduce",
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "alltoall",
}


class CollectiveTable:
    """Ranks by bytes, of one operation."""

    def __init__(self, columns: Columns) -> None:
        ranks, moved, seconds = (columns[name] for name in ("ranks", "message_bytes", "seconds"))
        self._roofline = TableRoofline.of_rows(seconds, np.ones_like(seconds), moved)
        base = self._roofline.log_seconds(np.zeros_like(moved), moved)
        self._shapes = Configurations.of_rows((ranks,), (moved,), np.log(seconds), base, scales=(1.0,), envelope=FAILED)

    def estimate(self, ranks: Floats, message_bytes: Floats) -> Estimate:
        """Times of the collective. A number of ranks that was not measured is scaled from the nearest."""
        reading = self._shapes.read((ranks,), (message_bytes,))
        base = self._roofline.log_seconds(np.zeros_like(message_bytes), message_bytes)
        estimate = Estimate(np.exp(reading.relative + base), reading.codes, reading.off_grid)
        return estimate.at_least(TimeOrigin.SCALED, reading.is_mixed)


class CollectiveTables:
    """The collectives of a system as an engine runs them. A device with other links than the measured one has none."""

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._tables: dict[tuple[str, CollectiveKind], CollectiveTable | None] = {}

    def all_reduce(self, ranks: Floats, message_bytes: Floats) -> Estimate:
        """The engine's own all-reduce, or the fastest of any engine; NCCL where no engine measured one."""
        if not self._system.has_same_links:
            return Estimate.unknown(len(ranks))
        engines = ENGINES if self._engine is None else (self._engine,)
        for names in (engines, ENGINES):
            tables = [self._table(name, CollectiveKind.ALL_REDUCE) for name in names]
            if estimates := [table.estimate(ranks, message_bytes) for table in tables if table is not None]:
                return self._scaled(fastest(estimates))
        return self.collective(CollectiveKind.ALL_REDUCE, ranks, message_bytes)

    def collective(self, kind: CollectiveKind, ranks: Floats, message_bytes: Floats) -> Estimate:
        """A collective of NCCL (or oneCCL)."""
        if not self._system.has_same_links:
            return Estimate.unknown(len(ranks))
        for library in _LIBRARIES:
            if (table := self._table(library, kind)) is not None:
                return self._scaled(table.estimate(ranks, message_bytes))
        return Estimate.unknown(len(ranks))

    def _scaled(self, estimate: Estimate) -> Estimate:
        return estimate if self._system.is_own else estimate.at_least(TimeOrigin.SCALED)

    def _table(self, source: str, kind: CollectiveKind) -> CollectiveTable | None:
        key = (source, kind)
        if key not in self._tables:
            columns = collective_rows(self._system.system, source, kind)
            self._tables[key] = None if columns is None else CollectiveTable(columns)
        return self._tables[key]


def collective_rows(system: str, source: str, kind: CollectiveKind) -> Columns | None:
    """`ranks`, `message_bytes` and `seconds` that an engine or a library measured; None: it did not."""
    if source in ENGINES:
        columns = _engine_rows(system, source)
        return None if columns is None else _of_kind(columns, kind)
    return _widest(_of_kind(columns, kind) for columns in _library_rows(system, source))


def _widest(versions: Iterable[Columns | None]) -> Columns | None:
    """Of versions of a library, newest first, the first with the most ranks: newer files may lack some."""
    measured = [columns for columns in versions if columns is not None]
    return max(measured, key=lambda columns: float(columns["ranks"].max()), default=None)


def _engine_rows(system: str, engine: str) -> Columns | None:
    table = newest(system, "custom_allreduce", engine)
    if table is None:
        return None
    rows = read_rows(table, ("allreduce_dtype", "num_gpus", "message_size"), where=CAPTURED)
    operation = np.full(len(rows["seconds"]), NCCL_NAMES[CollectiveKind.ALL_REDUCE], dtype=object)
    return {**rows, "dtype": rows["allreduce_dtype"], "op_name": operation}


def _library_rows(system: str, library: str) -> Iterator[Columns]:
    """The rows of each version, the newest first."""
    for table in versions(system, library, library):
        rows = read_rows(table, (f"{library}_dtype", "op_name", "num_gpus", "message_size"))
        yield {**rows, "dtype": rows[f"{library}_dtype"]}


def _of_kind(columns: Columns, kind: CollectiveKind) -> Columns | None:
    known = np.isin(columns["dtype"], list(_ELEMENT_BYTES))
    keep = known & (columns["op_name"] == NCCL_NAMES[kind]) & (columns["num_gpus"] > 1)
    if not keep.any():
        return None
    size = np.array([_ELEMENT_BYTES[str(name)] for name in columns["dtype"][keep]])
    pairs = np.stack([columns["num_gpus"][keep].astype(np.float64), columns["message_size"][keep] * size], axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    seconds = np.full(len(distinct), np.inf)
    np.minimum.at(seconds, which.reshape(-1), columns["seconds"][keep])
    return {"ranks": distinct[:, 0], "message_bytes": distinct[:, 1], "seconds": seconds}
