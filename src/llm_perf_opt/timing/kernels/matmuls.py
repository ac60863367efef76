"""Matmuls `[rows, depth] x [depth, columns]` by format, from the `gemm` tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.core.tensor_formats import is_weight_format, weight_format
from llm_perf_opt.timing.kernels.grid import FAILED, Grid, filled, gathered, monotone, position
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, newest, read_rows
from llm_perf_opt.timing.kernels.times import Estimate, Floats, TableRoofline, TimeOrigin, fastest

_KEYS = ("m", "n", "k")
# Table format -> bytes of a stored weight and of an activation. Scales of blocks included.
STORED_BYTES: dict[str, tuple[float, float]] = {
    "bfloat16": (2.0, 2.0),
    "fp8": (1.0, 1.0),
    "fp8_block": (1.0, 1.0),
    "nvfp4": (0.5625, 0.5625),
    "int8_wo": (1.0, 2.0),
    "int4_wo": (0.53125, 2.0),
    "sq": (1.0, 1.0),  # SmoothQuant: weights and activations in int8
}
# fp8 per tensor and per block replace each other: some engines measured one of them bound by the host.
_STANDS_FOR = {"fp8": ("fp8", "fp8_block"), "fp8_block": ("fp8_block", "fp8")}


# The kernel in front of a matmul in 8 bits may write its input in 8 bits: norms, activations and attentions do in
# TensorRT-LLM, and in vLLM where it compiles with these fusions, as published servers do on the systems named here.
_JOINED_BY_VLLM = frozenset({"b200_sxm", "b300_sxm", "gb200", "gb300"})
_SCALING = ("computescale", "scale_matrix")  # tables: the scale of an input, and the input in 8 bits


@dataclass(frozen=True, slots=True)
class MatmulTable:
    """One format of one engine on one system."""

    table_format: str
    roofline: TableRoofline
    grid: Grid

    @classmethod
    def of_rows(cls, table_format: str, columns: Columns, *, envelope: float | None = FAILED) -> MatmulTable:
        """The table of rows that all have this format. `envelope`: see `monotone`; None keeps every time."""
        rows, width, depth = (columns[key].astype(np.float64) for key in _KEYS)
        seconds = columns["seconds"]
        flops, moved = matmul_work(rows, width, depth, np.ones_like(rows), *STORED_BYTES[table_format])
        roofline = TableRoofline.of_rows(seconds, flops, moved)
        levels = [np.unique(axis, return_inverse=True) for axis in (rows, width, depth)]
        shape = tuple(len(level) for level, _ in levels)
        log_time, base = np.full(shape, np.nan), np.full(shape, np.nan)
        places = tuple(place for _, place in levels)
        log_time[places], base[places] = np.log(seconds), roofline.log_seconds(flops, moved)
        if envelope is not None:
            log_time = monotone(log_time, (0, 1, 2), envelope)
        return cls(table_format, roofline, filled(tuple(np.log(level) for level, _ in levels), log_time - base))

    def estimate(
        self,
        rows: Floats,
        columns: Floats,
        depth: Floats,
        count: Floats,
        *,
        system: SystemForDevice | None = None,
        stored_bytes: tuple[float, float] | None = None,
    ) -> Estimate:
        """Times of matmuls. Several in one launch are read as one with this many times the columns."""
        place = position(self.grid.axes, (np.log(rows), np.log(columns * count), np.log(depth)))
        relative, codes = gathered(self.grid.values, self.grid.states, place)
        flops, moved = matmul_work(rows, columns, depth, count, *(stored_bytes or STORED_BYTES[self.table_format]))
        roofline = self.roofline if system is None else self.roofline.scaled(system.compute, system.bandwidth)
        estimate = Estimate(np.exp(relative + roofline.log_seconds(flops, moved)), codes, place.off_lines)
        if stored_bytes is not None or (system is not None and not system.is_own):
            return estimate.at_least(TimeOrigin.SCALED)
        return estimate.at_least(TimeOrigin.SCALED, count > 1)


def matmul_work(
    rows: Floats, columns: Floats, depth: Floats, count: Floats, weight_bytes: float, activation_bytes: float
) -> tuple[Floats, Floats]:
    """FLOPs and bytes of `count` matmuls; results are in 16 bits."""
    flops = 2.0 * rows * columns * depth * count
    moved = (weight_bytes * columns * depth + activation_bytes * rows * depth + 2.0 * rows * columns) * count
    return flops, moved


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """Which table formats answer for a weight format, and how bfloat16 is scaled where none was measured."""

    measured: tuple[str, ...]
    stored_bytes: tuple[float, float]
    may_scale: bool


def format_plan(name: str) -> FormatPlan | None:
    """The plan of a dtype or stored format; None: nothing measured comes near it (float32 and wider)."""
    if name in ("bfloat16", "float16"):
        return FormatPlan(("bfloat16",), STORED_BYTES["bfloat16"], False)
    if name.startswith("float8"):
        return FormatPlan(_STANDS_FOR["fp8"], STORED_BYTES["fp8"], True)
    if not is_weight_format(name):
        return None
    form = weight_format(name)
    weight_bytes = form.bits_per_value() / 8
    match form.compute, form.value_bits:
        case "float8_e4m3fn", 8:
            wanted = "fp8_block" if form.rows_per_scale not in (None, 1) else "fp8"
            return FormatPlan(_STANDS_FOR[wanted], STORED_BYTES[wanted], True)
        case "float4_e2m1fn_x2", _:
            return FormatPlan(("nvfp4",), (weight_bytes, 2.0), True)
        case "int8", 8:
            return FormatPlan(("sq",), STORED_BYTES["sq"], True)
        case None, 8:
            return FormatPlan(("int8_wo",), (weight_bytes, 2.0), True)
        case _, 4:
            return FormatPlan(("int4_wo",), (weight_bytes, 2.0), True)
    return FormatPlan((), (weight_bytes, 2.0), True)


class MatmulTables:
    """The matmuls of a system as an engine runs them.

    bfloat16 comes from the engine's own table. Of quantised formats the fastest table of any engine counts: several
    were measured bound by the host, which a serving engine is not.

    Rows of fp8 with one scale for a tensor were measured with two small kernels in front, which find the scale of the
    input and apply it. An engine that joins these with the kernel before them does not pay for them here.
    """

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._joins_scaling = engine == "trtllm" or (engine == "vllm" and system.system in _JOINED_BY_VLLM)
        self._tables: dict[tuple[str, str, bool], MatmulTable | None] = {}

    def estimate(self, name: str, rows: Floats, columns: Floats, depth: Floats, count: Floats) -> Estimate:
        """Times of matmuls with a right operand of one format."""
        plan = format_plan(name)
        if plan is None:
            return Estimate.unknown(len(rows))
        is_joined = self._joins_scaling and plan.measured[:1] == ("fp8",)
        estimates = [
            table.estimate(rows, columns, depth, count, system=self._system)
            for table_format in plan.measured
            for engine in self._engines(table_format)
            if (table := self._table(engine, table_format, is_joined)) is not None
        ]
        if not estimates and plan.may_scale:
            estimates = [
                table.estimate(rows, columns, depth, count, system=self._system, stored_bytes=plan.stored_bytes)
                for engine in self._engines("bfloat16")
                if (table := self._table(engine, "bfloat16")) is not None
            ]
        return fastest(estimates) if estimates else Estimate.unknown(len(rows))

    def best_bytes_per_s(self) -> float:
        """Of 16-bit matmuls of any engine, on this device; 0: none were measured."""
        tables = (self._table(engine, "bfloat16") for engine in ENGINES)
        rates = (table.roofline.bytes_per_s * self._system.bandwidth for table in tables if table is not None)
        return max(rates, default=0.0)

    def _engines(self, table_format: str) -> tuple[str, ...]:
        if self._engine is None or table_format != "bfloat16":
            return ENGINES
        own = self._table(self._engine, table_format)
        return ENGINES if own is None else (self._engine,)

    def _table(self, engine: str, table_format: str, is_joined: bool = False) -> MatmulTable | None:
        key = (engine, table_format, is_joined and table_format == "fp8")
        if key not in self._tables:
            columns = matmul_rows(self._system.system, engine, table_format)
            if columns is not None and key[-1]:
                columns = _without_scaling(self._system.system, columns)
            self._tables[key] = None if columns is None else MatmulTable.of_rows(table_format, columns)
        return self._tables[key]


def matmul_rows(system: str, engine: str, table_format: str) -> Columns | None:
    """The measured rows of one format of an engine; None: there are none."""
    table = newest(system, "gemm", engine)
    if table is None:
        return None
    columns = read_rows(table, _KEYS, where=f"gemm_dtype = '{table_format}'")
    return columns if len(columns["seconds"]) else None


def _without_scaling(system: str, columns: Columns) -> Columns:
    """Rows of fp8 without the kernels in front, of which the fastest that any engine measured are taken off.

    What is left is no faster than the best rows of the same table move memory and multiply.
    """
    rows, width, depth = (columns[key].astype(np.float64) for key in _KEYS)
    measured = [grid for engine in ENGINES if (grid := _scaling(system, engine)) is not None]
    if not measured:
        return columns
    place = [np.log(rows), np.log(depth)]
    scaling = [np.exp(gathered(grid.values, grid.states, position(grid.axes, place))[0]) for grid in measured]
    flops, moved = matmul_work(rows, width, depth, np.ones_like(rows), *STORED_BYTES["fp8"])
    best = TableRoofline.of_rows(columns["seconds"], flops, moved)
    least = np.maximum(flops / best.flops_per_s, moved / best.bytes_per_s)
    left = np.maximum(columns["seconds"] - np.min(scaling, axis=0), np.minimum(least, columns["seconds"]))
    return {**columns, "seconds": left}


def _scaling(system: str, engine: str) -> Grid | None:
    """Log seconds in which an engine finds the scale of an input and applies it, over its rows and depth."""
    tables = [newest(system, name, engine) for name in _SCALING]
    parts = [read_rows(table, ("m", "k"), where="quant_dtype = 'fp8'") for table in tables if table is not None]
    if len(parts) < len(_SCALING) or not all(len(columns["seconds"]) for columns in parts):
        return None
    total: dict[tuple[int, int], float] = {}
    for columns in parts:
        for at in zip(columns["m"].tolist(), columns["k"].tolist(), columns["seconds"].tolist(), strict=True):
            total[at[:2]] = total.get(at[:2], 0.0) + at[2]
    levels = [np.unique(axis, return_inverse=True) for axis in np.array(list(total), np.float64).T]
    values = np.full([len(level) for level, _ in levels], np.nan)
    values[tuple(at for _, at in levels)] = np.log(list(total.values()))
    return filled(tuple(np.log(level) for level, _ in levels), values)
