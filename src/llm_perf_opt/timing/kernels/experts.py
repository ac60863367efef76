"""Routed experts in one grouped kernel, from the `moe` tables: up, gate and down without router and shared expert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.timing.kernels.grid import FAILED, Configurations
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.matmuls import format_plan
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, TableFile, read_rows, versions
from llm_perf_opt.timing.kernels.times import Estimate, Flags, Floats, TableRoofline, TimeOrigin, choose, fastest

LAYER_KEYS = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
_LAYER = tuple(key for key in LAYER_KEYS if key != "num_tokens")
# Tokens of a served model do not spread evenly over experts: the skewed distribution counts, else the even one.
DISTRIBUTIONS = ("power_law_1.2", "power_law_1.01", "balanced")
# Experts without a gate have two matrices, not three. They are another kernel, which TensorRT-LLM's rows name. Rows of
# vLLM for such a model's layer are not marked; read as gated ones they would be faster than memory.
GATED = "kernel_source not like '%nongated%'"
TABLE_NAME = "moe"
# Each rank with the rows of its own experts alone. Deployments this wide spread busy experts over ranks.
_SENT = {"trtllm": "wideep_moe", "sglang": "wideep_generation_moe"}
_SPREAD = "power_law_1.2_eplb"
_NOT_GATED = "kernel_source like '%nongated%'"
# Table format -> bytes of a stored weight and of an activation.
STORED_BYTES: dict[str, tuple[float, float]] = {
    "bfloat16": (2.0, 2.0),
    "fp8": (1.0, 1.0),
    "fp8_block": (1.0, 1.0),
    "nvfp4": (0.5625, 0.5625),
    "int4_wo": (0.53125, 2.0),
    "w4afp8": (0.53125, 1.0),
    "w4a16_mxfp4": (0.53125, 2.0),
    "w4a8_mxfp4_mxfp8": (0.53125, 1.0),
}
_MXFP4 = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsQuery:
    """Columns of many expert layers; `inner` is of one tensor rank, `tokens` and `experts` are of all ranks."""

    tokens: Floats
    hidden: Floats
    inner: Floats
    experts: Floats
    chosen: Floats
    expert_ranks: Floats

    def __len__(self) -> int:
        return len(self.tokens)

    def shape_columns(self) -> list[Floats]:
        """What tells measured layers apart: sizes, the share of experts a token reaches, the rank's experts."""
        own = self.experts / self.expert_ranks
        return [self.hidden, self.inner, self.chosen / self.experts, own, self.expert_ranks]


def experts_work(
    query: ExpertsQuery, weight_bytes: float, activation_bytes: float, *, is_gated: bool = True
) -> tuple[Floats, Floats]:
    """FLOPs and bytes of one rank: its share of the tokens, and each expert that any token reaches read once."""
    count = 3.0 if is_gated else 2.0  # matrices of an expert; as many rows of `inner` are written and read
    routed = query.tokens * query.chosen / query.expert_ranks
    own = query.experts / query.expert_ranks
    reached = own * -np.expm1(query.tokens * np.log1p(-np.minimum(query.chosen / query.experts, 1 - 1e-12)))
    matrices = count * query.hidden * query.inner
    moved = reached * matrices * weight_bytes + routed * (2 * query.hidden + count * query.inner) * activation_bytes
    return 2.0 * routed * matrices, moved


@dataclass(frozen=True, slots=True)
class ExpertsTable:
    """One format of one engine on one system."""

    table_format: str
    roofline: TableRoofline
    shapes: Configurations
    is_gated: bool

    @classmethod
    def of_rows(cls, table_format: str, columns: Columns, *, is_gated: bool = True) -> ExpertsTable:
        """The table of rows that all have this format."""
        query = query_of_rows(columns)
        work = experts_work(query, *STORED_BYTES[table_format], is_gated=is_gated)
        roofline = TableRoofline.of_rows(columns["seconds"], *work)
        shapes = Configurations.of_rows(
            query.shape_columns(),
            (query.tokens,),
            np.log(columns["seconds"]),
            roofline.log_seconds(*work),
            scales=(1.0,) * 5,
            envelope=FAILED,
        )
        return cls(table_format, roofline, shapes, is_gated)

    def estimate(
        self,
        query: ExpertsQuery,
        system: SystemForDevice,
        stored_bytes: tuple[float, float] | None = None,
        *,
        is_gated: bool = True,
    ) -> Estimate:
        """Times. A layer that was not measured is scaled from its nearest."""
        reading = self.shapes.read(query.shape_columns(), (query.tokens,))
        work = experts_work(query, *(stored_bytes or STORED_BYTES[self.table_format]), is_gated=is_gated)
        roofline = self.roofline.scaled(system.compute, system.bandwidth)
        seconds = np.exp(reading.relative + roofline.log_seconds(*work))
        estimate = Estimate(seconds, reading.codes, reading.off_grid).at_least(TimeOrigin.SCALED, reading.is_mixed)
        is_as_measured = system.is_own and stored_bytes is None and is_gated == self.is_gated
        return estimate if is_as_measured else estimate.at_least(TimeOrigin.SCALED)


def query_of_rows(columns: Columns) -> ExpertsQuery:
    """The layers that rows describe."""

    def floats(name: str) -> Floats:
        return columns[name].astype(np.float64)

    return ExpertsQuery(
        tokens=floats("num_tokens"),
        hidden=floats("hidden_size"),
        inner=floats("inter_size") / floats("moe_tp_size"),
        experts=floats("num_experts"),
        chosen=floats("topk"),
        expert_ranks=floats("moe_ep_size"),
    )


def table_formats(name: str) -> tuple[str, ...]:
    """The table formats that answer for a weight format of ours, any of them."""
    plan = format_plan(name)
    if name.startswith("mxfp4"):
        return _MXFP4
    measured = () if plan is None else plan.measured
    return tuple(measured_format for measured_format in measured if measured_format in STORED_BYTES)


class ExpertsTables:
    """The experts of a system: of every format the fastest table of any engine that measured the layer.

    A layer that an engine did not measure is not taken from that engine where another measured it. Experts without a
    gate are scaled from those with one where nobody measured them.
    """

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._tables: dict[tuple[str, str, bool, str], ExpertsTable | None] = {}

    def estimate(
        self, query: ExpertsQuery, name: str, *, is_gated: bool = True, are_rows_sent: bool = False
    ) -> Estimate:
        """Times of expert layers with weights of one format."""
        plan = format_plan(name)
        if plan is None:
            return Estimate.unknown(len(query))
        if are_rows_sent and is_gated:
            whole = self.estimate(query, name)
            sent = [
                _only_better_than_scaled(table.estimate(query, self._system))
                for table_format in table_formats(name)
                for engine, rows in _SENT.items()
                if (table := self._built(engine, table_format, is_gated=True, rows=rows)) is not None
            ]
            measured = fastest([*sent, Estimate.unknown(len(query))])
            return choose(~np.isnan(measured.seconds), measured, whole)
        for of_gated in dict.fromkeys((is_gated, True)):
            estimates = [
                table.estimate(query, self._system, is_gated=is_gated)
                for table_format in table_formats(name)
                for table in self._of_format(table_format, is_gated=of_gated)
            ]
            if estimates:
                return _best_known(estimates)
        estimates = [
            table.estimate(query, self._system, plan.stored_bytes, is_gated=is_gated)
            for table in self._of_format("bfloat16", is_gated=True)
        ]
        return _best_known(estimates) if estimates else Estimate.unknown(len(query))

    def _of_format(self, table_format: str, *, is_gated: bool) -> list[ExpertsTable]:
        own = self._built(self._engine, table_format, is_gated=is_gated) if self._engine is not None else None
        if own is not None and table_format == "bfloat16":
            return [own]
        built = (self._built(engine, table_format, is_gated=is_gated) for engine in ENGINES)
        return [table for table in built if table is not None]

    def _built(self, engine: str, table_format: str, *, is_gated: bool, rows: str = TABLE_NAME) -> ExpertsTable | None:
        key = (engine, table_format, is_gated, rows)
        if key not in self._tables:
            columns = experts_rows(self._system.system, engine, table_format, is_gated=is_gated, name=rows)
            table = None if columns is None else ExpertsTable.of_rows(table_format, columns, is_gated=is_gated)
            self._tables[key] = table
        return self._tables[key]


def experts_rows(
    system: str, engine: str, table_format: str, *, is_gated: bool = True, name: str = TABLE_NAME
) -> Columns | None:
    """The rows of one format in its first distribution: of the newest version, then of layers that it lacks."""
    merged: dict[str, list[NDArray[Any]]] = {}
    seen: set[bytes] = set()
    for table in versions(system, name, engine):
        columns = _of_first_distribution(table, table_format, GATED if is_gated else _NOT_GATED)
        if columns is not None:
            keep = _new_layers(columns, seen)
            for column in (*LAYER_KEYS, "seconds"):
                merged.setdefault(column, []).append(columns[column][keep])
    return {column: np.concatenate(parts) for column, parts in merged.items()} if merged else None


def _of_first_distribution(table: TableFile, table_format: str, kernel: str) -> Columns | None:
    for distribution in (*([_SPREAD] if table.name in _SENT.values() else []), *DISTRIBUTIONS):
        of_format = f"moe_dtype = '{table_format}' and distribution = '{distribution}'"
        columns = read_rows(table, LAYER_KEYS, where=f"{kernel} and {of_format}")
        if len(columns["seconds"]):
            return columns
    return None


def _new_layers(columns: Columns, seen: set[bytes]) -> Flags:
    """Which rows are of layers that were not seen before; they are now."""
    layers, which = np.unique(np.stack([columns[key] for key in _LAYER], axis=1), axis=0, return_inverse=True)
    names = [layer.tobytes() for layer in layers]
    is_new = np.array([name not in seen for name in names], np.bool_)
    seen.update(names)
    return is_new[which.reshape(-1)]


def _best_known(estimates: Sequence[Estimate]) -> Estimate:
    """The fastest of the tables that measured the layer; only where none did, the fastest of the scaled ones."""
    best = fastest(estimates)
    from_rows = [_only_better_than_scaled(estimate) for estimate in estimates]
    measured = fastest(from_rows)
    return choose(~np.isnan(measured.seconds), measured, best)


def _only_better_than_scaled(estimate: Estimate) -> Estimate:
    unknown = Estimate.unknown(len(estimate.seconds))
    return choose(estimate.origin_codes < _SCALED, estimate, unknown)


_SCALED = list(TimeOrigin).index(TimeOrigin.SCALED)
