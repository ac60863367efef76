"""Attention from the tables of prefill, decode and encoders: by sequences, length, heads, window and cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.timing.kernels.grid import FAILED, Configurations
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, newest, read_rows
from llm_perf_opt.timing.kernels.times import Estimate, Floats, TableRoofline, TimeOrigin, choose, fastest

_NO_WINDOW = 0
_SCALES = (1.0, 1.0, 8.0, 1.0)  # key heads, heads of each, head size, window: head sizes have their own kernels
_KEYS = (
    "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype",
)  # fmt: skip
_ENCODER_KEYS = ("batch_size", "isl", "num_heads", "head_dim")
CACHE_BYTES = {"bfloat16": 2.0, "fp8": 1.0}


class Use(StrEnum):
    """Which table describes an attention."""

    PREFILL = "context_attention"
    DECODE = "generation_attention"
    ENCODER = "encoder_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """Columns of many attentions of one use. `window` 0: every key is seen."""

    sequences: Floats
    queries: Floats
    keys: Floats
    heads: Floats
    key_heads: Floats
    width: Floats
    value_width: Floats
    window: Floats

    def __len__(self) -> int:
        return len(self.sequences)


def attention_pairs(query: AttentionQuery, *, is_causal: bool) -> Floats:
    """Pairs of query and key that one head of one sequence multiplies."""
    queries, keys = query.queries, query.keys
    seen = np.where(query.window > 0, np.minimum(query.window, keys), keys)
    if not is_causal:
        return queries * seen
    # Query i of the last `queries` sees keys - queries + i keys, at most `seen`.
    first = keys - queries + 1
    growing = np.clip(seen - first + 1, 0, queries)
    return growing * (first + first + growing - 1) / 2 + (queries - growing) * seen


def attention_work(query: AttentionQuery, cache_bytes: float, *, is_causal: bool) -> tuple[Floats, Floats]:
    """FLOPs and bytes: scores and weighted sum; queries, results, keys and values once."""
    widths = query.width + query.value_width
    flops = 2.0 * attention_pairs(query, is_causal=is_causal) * query.heads * widths * query.sequences
    reach = np.where(query.window > 0, np.minimum(query.keys, query.window + query.queries - 1), query.keys)
    cached = reach * query.key_heads * widths * cache_bytes
    moved = query.sequences * (query.queries * query.heads * widths * 2.0 + cached)
    return flops, moved


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """One use, cache format and kind of window of one engine on one system."""

    use: Use
    cache_format: str
    has_window: bool
    roofline: TableRoofline
    shapes: Configurations

    @classmethod
    def of_rows(cls, use: Use, cache_format: str, columns: Columns, *, has_window: bool) -> AttentionTable:
        """The table of rows that already have this cache format and kind of window."""
        query = query_of_rows(use, columns)
        work = attention_work(query, CACHE_BYTES[cache_format], is_causal=use is not Use.ENCODER)
        roofline = TableRoofline.of_rows(columns["seconds"], *work)
        shapes = Configurations.of_rows(
            shape_columns(query, has_window=has_window),
            (query.sequences, query.keys),
            np.log(columns["seconds"]),
            roofline.log_seconds(*work),
            scales=_SCALES[: 4 if has_window else 3],
            envelope=FAILED,
        )
        return cls(use, cache_format, has_window, roofline, shapes)

    def estimate(self, query: AttentionQuery, system: SystemForDevice, *, is_causal: bool, cache: float) -> Estimate:
        """Times. Queries that are not as many as the keys are read at the length that has as many pairs."""
        reading = self.shapes.read(
            shape_columns(query, has_window=self.has_window), (query.sequences, self._length(query, is_causal))
        )
        work = attention_work(query, cache, is_causal=is_causal)
        roofline = self.roofline.scaled(system.compute, system.bandwidth)
        seconds = np.exp(reading.relative + roofline.log_seconds(*work))
        estimate = Estimate(seconds, reading.codes, reading.off_grid)
        stands_in = (query.window > 0) != self.has_window
        if self.use is not Use.DECODE:
            stands_in |= is_causal != (self.use is Use.PREFILL)
        estimate = estimate.at_least(TimeOrigin.SCALED, stands_in)
        is_own = system.is_own and cache == CACHE_BYTES[self.cache_format]
        return estimate if is_own else estimate.at_least(TimeOrigin.SCALED)

    def _length(self, query: AttentionQuery, is_causal: bool) -> Floats:
        if self.use is Use.DECODE:
            return query.keys
        if self.use is Use.ENCODER:
            return np.sqrt(query.queries * query.keys)
        hidden = (query.queries - 1) / 2 if is_causal else 0.0  # keys that the mean query does not see
        length = np.sqrt(2.0 * query.queries * (query.keys - hidden) + 0.25) - 0.5
        return np.where((query.queries == query.keys) & is_causal, query.keys, np.maximum(1.0, length))


def shape_columns(query: AttentionQuery, *, has_window: bool) -> list[Floats]:
    """What tells one measured attention from another, besides sequences and length."""
    columns = [query.key_heads, query.heads / query.key_heads, (query.width + query.value_width) / 2]
    return [*columns, np.maximum(query.window, 1.0)] if has_window else columns


def query_of_rows(use: Use, columns: Columns) -> AttentionQuery:
    """The attentions that rows describe."""

    def floats(name: str) -> Floats:
        return columns[name].astype(np.float64)

    heads = floats("num_heads")
    width = floats("head_dim")
    keys = floats("isl") + floats("step") if "step" in columns else floats("isl")
    return AttentionQuery(
        sequences=floats("batch_size"),
        queries=np.ones_like(keys) if use is Use.DECODE else floats("isl"),
        keys=keys,
        heads=heads,
        key_heads=floats("num_key_value_heads") if "num_key_value_heads" in columns else heads,
        width=width,
        value_width=width,
        window=floats("window_size") if "window_size" in columns else np.zeros_like(width),
    )


class AttentionTables:
    """The attention of a system as an engine runs it: the engine's own tables; where it has none, the fastest."""

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._tables: dict[tuple[str, Use, str, bool], AttentionTable | None] = {}
        self._rows: dict[tuple[str, Use], Columns | None] = {}

    def estimate(self, query: AttentionQuery, cache_format: str, *, is_causal: bool) -> Estimate:
        """Times of attentions with one cache format, all causal or none."""
        is_decode = query.queries == 1
        best = Estimate.unknown(len(query))
        if is_decode.any():
            best = self._of_use(Use.DECODE, query, cache_format, is_causal=is_causal)
        if not is_decode.all():
            many_queries = self._of_use(
                Use.PREFILL if is_causal else Use.ENCODER, query, cache_format, is_causal=is_causal
            )
            if not is_causal and np.isnan(many_queries.seconds).any():  # older systems have no encoder table
                prefill = self._of_use(Use.PREFILL, query, cache_format, is_causal=False)
                many_queries = choose(np.isnan(many_queries.seconds), prefill, many_queries)
            best = choose(is_decode, best, many_queries)
        return best

    def _of_use(self, use: Use, query: AttentionQuery, cache_format: str, *, is_causal: bool) -> Estimate:
        stored = "bfloat16" if use is Use.ENCODER else cache_format  # an encoder has no cache
        windowed = query.window > 0
        best = Estimate.unknown(len(query))
        for has_window in (True, False):  # without a table of windows the one without them is scaled by its work
            wanted = np.isnan(best.seconds) & windowed if has_window else np.isnan(best.seconds)
            if wanted.any():
                estimates = [
                    table.estimate(query, self._system, is_causal=is_causal, cache=CACHE_BYTES[stored])
                    for table in self._candidates(use, stored, has_window)
                ]
                if estimates:
                    best = choose(wanted, fastest(estimates), best)
        return best

    def _candidates(self, use: Use, cache_format: str, has_window: bool) -> list[AttentionTable]:
        """The engine's own table, else the tables of any engine; without one for the cache format, 16 bits."""
        own = () if self._engine is None else (self._engine,)
        for stored in dict.fromkeys((cache_format, "bfloat16")):
            for engines in (own, ENGINES):
                tables = [self._table(engine, use, stored, has_window) for engine in engines]
                if known := [table for table in tables if table is not None]:
                    return known
        return []

    def _table(self, engine: str, use: Use, cache_format: str, has_window: bool) -> AttentionTable | None:
        key = (engine, use, cache_format, has_window)
        if key not in self._tables:
            columns = self._columns(engine, use)
            self._tables[key] = None if columns is None else _built(use, cache_format, columns, has_window)
        return self._tables[key]

    def _columns(self, engine: str, use: Use) -> Columns | None:
        if (engine, use) not in self._rows:
            self._rows[engine, use] = attention_rows(self._system.system, engine, use)
        return self._rows[engine, use]


def attention_rows(system: str, engine: str, use: Use) -> Columns | None:
    """The measured rows of one use; of several types of arithmetic the fastest counts."""
    table = newest(system, use.value, engine)
    if table is None:
        return None
    if use is Use.ENCODER:
        return read_rows(table, _ENCODER_KEYS)
    defaults: dict[str, int | str] = {"window_size": _NO_WINDOW, "kv_cache_dtype": "bfloat16"}
    return read_rows(table, _KEYS, where="isl + step >= 1", defaults=defaults)


def _built(use: Use, cache_format: str, columns: Columns, has_window: bool) -> AttentionTable | None:
    chosen = selected(use, cache_format, columns, has_window)
    return None if chosen is None else AttentionTable.of_rows(use, cache_format, chosen, has_window=has_window)


def selected(use: Use, cache_format: str, columns: Columns, has_window: bool) -> Columns | None:
    """The rows of one cache format and kind of window; None: there are none."""
    count = len(columns["seconds"])
    keep: NDArray[np.bool_] = np.ones(count, np.bool_)
    if use is Use.ENCODER:
        keep &= not has_window and cache_format == "bfloat16"
    else:
        keep &= (columns["kv_cache_dtype"] == cache_format) & ((columns["window_size"] > 0) == has_window)
    return {name: column[keep] for name, column in columns.items()} if keep.any() else None
