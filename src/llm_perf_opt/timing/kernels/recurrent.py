"""Gated delta rules from the `gdn` tables: layers that carry a state instead of a cache.

Two kernels were measured, a short convolution and the rule itself; they run one after the other, and a row here is
their sum. A step updates the state of each sequence once, a prompt goes through it in pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.ops.kernel_shape import HEAD_WIDTH
from llm_perf_opt.timing.kernels.grid import FAILED, Configurations
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, newest, read_rows
from llm_perf_opt.timing.kernels.times import Estimate, Floats, TableRoofline, TimeOrigin, choose, fastest

MEASURED_KERNELS = 2
_STATE_BYTES, _VALUE_BYTES = 4.0, 2.0
_KEYS = ("kernel_source", "num_k_heads", "num_v_heads", "batch_size", "seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentQuery:
    """Columns of many layers; heads are the heads of one rank."""

    sequences: Floats
    queries: Floats
    key_heads: Floats
    value_heads: Floats

    def __len__(self) -> int:
        return len(self.sequences)


def recurrent_work(query: RecurrentQuery) -> tuple[Floats, Floats]:
    """FLOPs and bytes: every token decays, reads and updates the states, which are read and written once."""
    tokens, square = query.sequences * query.queries, HEAD_WIDTH * HEAD_WIDTH
    states = query.value_heads * square
    rows = (2 * query.key_heads + 2 * query.value_heads) * HEAD_WIDTH
    return 6.0 * tokens * states, 2 * query.sequences * states * _STATE_BYTES + 2 * tokens * rows * _VALUE_BYTES


@dataclass(frozen=True, slots=True)
class RecurrentTable:
    """Steps or prompts of one engine on one system."""

    roofline: TableRoofline
    shapes: Configurations

    @classmethod
    def of_rows(cls, columns: Columns) -> RecurrentTable | None:
        """The table of rows of one phase, each the sum of both kernels; None: no row has both."""
        query, seconds = _sums(columns)
        if not len(query):
            return None
        work = recurrent_work(query)
        roofline = TableRoofline.of_rows(seconds, *work)
        shapes = Configurations.of_rows(
            (query.value_heads, query.key_heads),
            (query.sequences, query.queries),
            np.log(seconds),
            roofline.log_seconds(*work),
            scales=(1.0, 0.3),
            envelope=FAILED,
        )
        return cls(roofline, shapes)

    def estimate(self, query: RecurrentQuery, system: SystemForDevice) -> Estimate:
        """Times of both kernels together."""
        reading = self.shapes.read((query.value_heads, query.key_heads), (query.sequences, query.queries))
        roofline = self.roofline.scaled(system.compute, system.bandwidth)
        seconds = np.exp(reading.relative + roofline.log_seconds(*recurrent_work(query)))
        estimate = Estimate(seconds, reading.codes, reading.off_grid)
        return estimate if system.is_own else estimate.at_least(TimeOrigin.SCALED)


def _sums(columns: Columns) -> tuple[RecurrentQuery, Floats]:
    """Rows that both kernels have, with the sum of their times."""
    keys = np.stack([columns[name].astype(np.float64) for name in _KEYS[1:]], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    seconds = np.bincount(which, weights=columns["seconds"].astype(np.float64))
    is_whole = np.bincount(which) == MEASURED_KERNELS
    key_heads, value_heads, sequences, queries = distinct[is_whole].T
    query = RecurrentQuery(sequences=sequences, queries=queries, key_heads=key_heads, value_heads=value_heads)
    return query, seconds[is_whole]


class RecurrentTables:
    """The layers of a system: the engine's own tables; where it measured none, the fastest of any engine."""

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._tables: dict[tuple[str, str], RecurrentTable | None] = {}

    def estimate(self, query: RecurrentQuery) -> Estimate:
        """Steps where one token of each sequence runs, prompts elsewhere."""
        is_step = query.queries == 1
        best = Estimate.unknown(len(query))
        for phase, wanted in (("generation", is_step), ("context", ~is_step)):
            if wanted.any():
                best = choose(wanted, self._of_phase(phase, query), best)
        return best

    def _of_phase(self, phase: str, query: RecurrentQuery) -> Estimate:
        own = () if self._engine is None else (self._engine,)
        for engines in (own, ENGINES):
            tables = [self._table(engine, phase) for engine in engines]
            if estimates := [table.estimate(query, self._system) for table in tables if table is not None]:
                return fastest(estimates)
        return Estimate.unknown(len(query))

    def _table(self, engine: str, phase: str) -> RecurrentTable | None:
        key = (engine, phase)
        if key not in self._tables:
            file = newest(self._system.system, "gdn", engine)
            columns = None if file is None else read_rows(file, _KEYS, where=f"phase = '{phase}'")
            self._tables[key] = None if columns is None else RecurrentTable.of_rows(columns)
        return self._tables[key]
