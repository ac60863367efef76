"""The Parquet files of a set of kernel tables: which there are, and their columns as arrays.

Which set is used, says `table_sets.py`. Files are read in place by DuckDB, once on a machine: `kept_rows.py` has what
was read before. `<data>/<system>/<family>/<engine>/<version>/<name>.parquet`; latency is in milliseconds.

Which measured system answers for a device, and how its times are scaled to another device.

A device with a measured chip takes the table as it is. Any other NVIDIA GPU takes the nearest measured system:
the same architecture first, then the closest ratio of compute to bandwidth, scaled by peaks and bandwidth. Devices of
vendors without a table get none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, load_devices
from llm_perf_opt.core.missing_packages import TABLE_PACKAGES
from llm_perf_opt.timing.kernels.kept_rows import Columns, kept_rows
from llm_perf_opt.timing.kernels.table_sets import TABLE, active_set, require_set

READER = "duckdb"
ENGINES = ("vllm", "sglang", "trtllm")
INSTALL = 'pip install "llm-perf-opt[kernels]"'
_ANOTHER = "llm-perf-opt tables list shows the sets that are here; tables remove and tables add put one in its place"
_LIBRARIES = ("nccl", "oneccl")  # in the place of an engine
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One file of measured rows."""

    system: str
    family: str
    engine: str
    version: str
    name: str  # without `_perf.parquet`
    path: Path


def missing_packages() -> tuple[str, ...]:
    """What is not here: a set of tables, and what reads them."""
    tables = () if active_set() is not None else (next(iter(TABLE_PACKAGES.values())),)
    return tables if util.find_spec(READER) is not None else (*tables, READER)


def tables_label() -> str:
    """Name, version and licence of the tables in use; every report that used them says it."""
    return require_set(INSTALL).label


def tables_stamp() -> str:
    """What changes with the rows in use; `none` where there are none."""
    chosen = active_set()
    return "none" if chosen is None else f"{chosen.label} {chosen.stamp}"


def data_folder() -> Path:
    """The folder of the tables; raises with the command to install them where something is missing."""
    chosen = require_set(INSTALL)
    if util.find_spec(READER) is None:
        raise PerfOptError(
            f"Reading kernel tables needs {READER}.",
            why="they are Parquet files",
            fix=f"pip install {READER}, or {INSTALL}",
        )
    return chosen.folder


def list_tables(folder: Path | None = None) -> tuple[TableFile, ...]:
    """Every file of measured rows, sorted by system, family, engine, version and name."""
    return _tables_in(folder or data_folder())


@cache
def _tables_in(root: Path) -> tuple[TableFile, ...]:
    tables = []
    for path in sorted(root.glob(TABLE)):
        system, family, engine, version, name = path.relative_to(root).parts
        if engine in ENGINES or engine in _LIBRARIES:
            stem = name.removesuffix("_perf.parquet")
            tables.append(TableFile(system=system, family=family, engine=engine, version=version, name=stem, path=path))
    return tuple(tables)


def newest(system: str, name: str, engine: str, folder: Path | None = None) -> TableFile | None:
    """The file of the newest version of an engine that measured a table on a system; None: there is none."""
    measured = versions(system, name, engine, folder)
    return measured[0] if measured else None


def versions(system: str, name: str, engine: str, folder: Path | None = None) -> list[TableFile]:
    """The files of a table on a system, the newest version of the engine first."""
    measured = [t for t in list_tables(folder) if (t.system, t.name, t.engine) == (system, name, engine)]
    return sorted(measured, key=lambda table: _order(table.version), reverse=True)


def _order(version: str) -> tuple[int, ...]:
    """`1.3.0rc20` after `1.3.0rc10` and after `1.0.0`."""
    return tuple(int(number) for number in _NUMBERS.findall(version))


@cache
def _connection() -> Any:
    import duckdb

    connection = duckdb.connect()
    connection.execute("set threads = 1")
    return connection


def column_names(table: TableFile) -> tuple[str, ...]:
    """The columns that a file has: older files lack some."""
    with _parquet(table):
        rows = _connection().execute("describe select * from read_parquet(?)", [str(table.path)]).fetchall()
    return tuple(str(row[0]) for row in rows)


@contextmanager
def _parquet(table: TableFile) -> Iterator[None]:
    """A damaged file, or one with columns of another kind, is an error that names it."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise PerfOptError(
            f"The table {table.path.name} of {table.system} cannot be read.",
            why=" ".join(str(error).split())[:300],
            fix=_ANOTHER,
        ) from error


def read_rows(
    table: TableFile, keys: Sequence[str], *, where: str = "true", defaults: Mapping[str, int | str] | None = None
) -> Columns:
    """The distinct rows of a file by `keys`, with `seconds`, the shortest latency of each.

    `where` is a condition in SQL. A column that the file lacks takes its value from `defaults`; without one the file is
    not of the layout that this room knows, and that raises.
    """
    return kept_rows(
        table.path,
        [list(keys), where, sorted((defaults or {}).items())],
        lambda: _read(table, keys, where, defaults or {}),
    )


def _read(table: TableFile, keys: Sequence[str], where: str, defaults: Mapping[str, int | str]) -> Columns:
    present = set(column_names(table))
    parts = []
    for key in keys:
        if key not in present and key not in defaults:
            raise PerfOptError(
                f"The table {table.path.name} of {table.system} has no column {key!r}.",
                why=f"{tables_stamp()} lays it out in another way than this version reads",
                fix=_ANOTHER,
            )
        parts.append(f'"{key}"' if key in present else f"{_literal(defaults[key])} as {key}")
    sql = (
        f"select {', '.join(parts)}, min(latency) / 1000.0 as seconds from read_parquet(?) "
        f"where latency > 0 and ({where}) group by all order by all"
    )
    with _parquet(table):
        fetched: dict[str, NDArray[Any]] = _connection().execute(sql, [str(table.path)]).fetchnumpy()
    columns = {name: np.ma.getdata(column) for name, column in fetched.items()}
    return {name: column.astype(np.str_) if column.dtype.hasobject else column for name, column in columns.items()}


def _literal(value: int | str) -> str:
    if isinstance(value, str):
        assert _WORD.fullmatch(value), value
        return f"'{value}'"
    return str(value)


# Table system -> the device it was measured on.
MEASURED_ON = {
    "a100_sxm": "a100-sxm-80g",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-bw-server",
    "b60": "arc-pro-b60",
}
_SYSTEM_OF = {device: system for system, device in MEASURED_ON.items()}
# What a peak ratio is taken from: the first that both devices know.
_PEAKS = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemForDevice:
    """A measured system, and how many times as fast the device is at FLOPs and at bytes."""

    system: str
    device: str
    compute: float
    bandwidth: float
    has_same_links: bool = True  # between the GPUs of a node: times of collectives hold for this device too

    @property
    def is_own(self) -> bool:
        """Whether the table was measured on this very device."""
        return MEASURED_ON[self.system] == self.device

    @property
    def difference(self) -> str | None:
        """What differs from the measured device, in a sentence; None: nothing."""
        if self.is_own:
            return None
        return (
            f"measured on {MEASURED_ON[self.system]}; {self.device} has {self.compute:.2f} times its matrix rate and "
            f"{self.bandwidth:.2f} times its memory bandwidth, so times are scaled by these factors"
        )


def system_of(device: Device) -> SystemForDevice | None:
    """The measured system that answers for a device; None: no table comes near it."""
    if device.id in _SYSTEM_OF:
        return SystemForDevice(system=_SYSTEM_OF[device.id], device=device.id, compute=1.0, bandwidth=1.0)
    known = load_devices().devices
    candidates = []
    for system, name in MEASURED_ON.items():
        measured = known[name]
        ratio = _peak_ratio(device, measured)
        if measured.vendor == device.vendor == "NVIDIA" and ratio is not None:
            bandwidth = device.bandwidth_bytes_per_s / measured.bandwidth_bytes_per_s
            far = (_architecture_distance(device, measured), abs(math.log(ratio / bandwidth)), abs(math.log(ratio)))
            stand_in = SystemForDevice(
                system=system,
                device=device.id,
                compute=ratio,
                bandwidth=bandwidth,
                has_same_links=_links(device) == _links(measured) and None not in _links(device),
            )
            candidates.append((far, stand_in))
    return min(candidates, key=lambda entry: entry[0])[1] if candidates else None


def system_named(name: str) -> SystemForDevice:
    """The system of a table name or of a device id; a device without one raises."""
    if name in MEASURED_ON:
        return SystemForDevice(system=name, device=MEASURED_ON[name], compute=1.0, bandwidth=1.0)
    device = load_devices().find(name)
    system = system_of(device)
    if system is None:
        raise PerfOptError(
            f"No measured kernels describe {device.name}.",
            why=f"tables exist for {', '.join(sorted(MEASURED_ON.values()))}, and NVIDIA GPUs are scaled from those",
            fix="its times come from the roofline of its data sheet",
        )
    return system


def _peak_ratio(device: Device, measured: Device) -> float | None:
    for name in _PEAKS:
        if name in device.peak_flops_per_s and name in measured.peak_flops_per_s:
            return device.peak_flops_per_s[name] / measured.peak_flops_per_s[name]
    return None


def _links(device: Device) -> tuple[object, object]:
    return device.facts.get("nvlink_gb_per_s_both_ways"), device.facts.get("form_factor")


def _architecture_distance(device: Device, measured: Device) -> float:
    """0: the same chip family; then by how far the compute capabilities are apart."""
    if device.arch.split()[:2] == measured.arch.split()[:2]:
        return 0.0
    mine, theirs = device.facts.get("compute_capability"), measured.facts.get("compute_capability")
    if mine is None or theirs is None:
        return 100.0
    return abs(float(mine) - float(theirs))
