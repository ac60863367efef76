"""One entry to the measured kernels of a device: shapes in, seconds with their origin and spread out.

How far measured times are from ours: quantiles of rows that were left out, in `spread.json`.

`benchmarks/kernels/held_out.py` measures them and writes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.core.collectives import CollectiveKind
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.ops.kernel_shape import (
    AttentionShape,
    ExpertsShape,
    KernelShape,
    LatentModuleShape,
    MatmulShape,
    StateShape,
)
from llm_perf_opt.timing.kernels.attention import AttentionQuery, AttentionTables
from llm_perf_opt.timing.kernels.collectives import CollectiveTables
from llm_perf_opt.timing.kernels.experts import ExpertsQuery, ExpertsTables
from llm_perf_opt.timing.kernels.latent import LatentQuery, LatentTables, Module
from llm_perf_opt.timing.kernels.matmuls import MatmulTables
from llm_perf_opt.timing.kernels.recurrent import RecurrentQuery, RecurrentTables
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, data_folder, system_named
from llm_perf_opt.timing.kernels.times import CODE, ORIGINS, Estimate, Flags, Floats, TimeOrigin, Times

ANY_SYSTEM = "any"
MOST_DIMENSIONS = 3  # more unmeasured dimensions count as this many


class Family(StrEnum):
    """The kinds of kernels that have tables."""

    MATMULS = "matmuls"
    ATTENTION = "attention"
    LATENT = "latent attention"
    EXPERTS = "experts"
    COLLECTIVES = "collectives"
    RECURRENT = "recurrent layers"


class HeldOutSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Measured over expected time: the 10 % and the 90 % quantile, and from how many rows."""

    system: str
    family: Family
    origin: TimeOrigin
    off_grid: int
    low: Annotated[float, msgspec.Meta(gt=0)]
    high: Annotated[float, msgspec.Meta(gt=0)]
    rows: int


class SpreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file: which tables it was measured on, by what, and the quantiles."""

    tables: str
    measured_by: str
    spreads: tuple[HeldOutSpread, ...]


@cache
def _spread_file() -> SpreadFile:
    text = resources.files("llm_perf_opt.timing.kernels").joinpath("spread.json").read_bytes()
    return msgspec.json.decode(text, type=SpreadFile)


def spread_tables() -> str:
    """The set of tables of which rows were left out to measure the quantiles."""
    return _spread_file().tables


@cache
def load_spreads() -> dict[tuple[str, Family, TimeOrigin, int], HeldOutSpread]:
    """System, family, origin and number of unmeasured dimensions -> quantiles."""
    spreads = _spread_file().spreads
    return {(spread.system, spread.family, spread.origin, spread.off_grid): spread for spread in spreads}


def spread_of(system: str, family: Family, origin: TimeOrigin, off_grid: int) -> HeldOutSpread | None:
    """The quantiles that come nearest: of this system, else of all; of as many dimensions, else of fewer or more.

    A measured row without quantiles of its own kind takes the quantiles of interpolation, which are wider.
    """
    known = load_spreads()
    first = min(off_grid, MOST_DIMENSIONS)
    nearest = [*range(first, -1, -1), *range(first + 1, MOST_DIMENSIONS + 1)]
    origins = (origin, TimeOrigin.INTERPOLATED) if origin is TimeOrigin.MEASURED else (origin,)
    for wanted in origins:
        for place in (system, ANY_SYSTEM):
            for dimensions in nearest:
                if (spread := known.get((place, family, wanted, dimensions))) is not None:
                    return spread
    return None


def with_spread(system: SystemForDevice, family: Family, estimate: Estimate) -> Times:
    """An estimate with the factors around it; NaN where nothing was measured of its kind."""
    low, high = np.full(len(estimate.seconds), np.nan), np.full(len(estimate.seconds), np.nan)
    pairs = estimate.origin_codes.astype(np.int64) * 256 + estimate.off_grid
    for pair in np.unique(pairs).tolist():
        origin = ORIGINS[pair // 256]
        if CODE[origin] < CODE[TimeOrigin.ROOFLINE]:
            name = system.system if system.is_own else ANY_SYSTEM
            if (spread := spread_of(name, family, origin, pair % 256)) is not None:
                here = pairs == pair
                low[here], high[here] = spread.low, spread.high
    return Times(estimate.seconds, estimate.origin_codes, estimate.off_grid, low, high)


_STATE_NAMES = ("sequences", "queries", "key_heads", "value_heads")
Numbers = NDArray[np.float64] | NDArray[np.int64]
S = TypeVar("S", MatmulShape, AttentionShape, ExpertsShape, LatentModuleShape, StateShape)


def kernel_tables(device: str, engine: str | None = None) -> KernelTables:
    """The measured kernels of a device, by its id or by the name of a measured system, as an engine runs them.

    Without an engine the fastest measured of any engine counts. A device that no table comes near raises, and so do
    missing packages, with the command that installs them.
    """
    if engine is not None and engine not in ENGINES:
        raise UsageError(
            f"{engine!r} is no engine with measured kernels.", why=f"known are {', '.join(ENGINES)}", fix="pick one"
        )
    return _tables_of(device, engine, data_folder())


@lru_cache(maxsize=32)
def _tables_of(device: str, engine: str | None, folder: Path) -> KernelTables:
    """Once for each set of tables."""
    return KernelTables(system_named(device), engine)


class KernelTables:
    """Times of kernels on one device. Tables are read when the first kernel of their family is timed."""

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self.system, self.engine = system, engine
        self._matmuls = MatmulTables(system, engine)
        self._attention = AttentionTables(system, engine)
        self._latent = LatentTables(system, engine)
        self._experts = ExpertsTables(system, engine)
        self._collectives = CollectiveTables(system, engine)
        self._recurrent = RecurrentTables(system, engine)

    def times(self, shapes: Sequence[KernelShape]) -> Times:
        """Times of kernels in the order of their shapes."""
        answers = with_spread(self.system, Family.MATMULS, Estimate.unknown(len(shapes)))
        for places, times in self._by_family(shapes):
            answers.seconds[places], answers.origin_codes[places] = times.seconds, times.origin_codes
            answers.spread_low[places], answers.spread_high[places] = times.spread_low, times.spread_high
            answers.off_grid[places] = times.off_grid
        return answers

    def best_bytes_per_s(self) -> float:
        """The best rate at which any matmul of the tables reads from memory; 0: there are none."""
        return self._matmuls.best_bytes_per_s()

    def matmuls(
        self, rows: Numbers, columns: Numbers, depth: Numbers, count: Numbers | None = None, *, weight_format: str
    ) -> Times:
        """Matmuls with a right operand of one format."""
        counts = np.ones(len(rows)) if count is None else count
        estimate = self._matmuls.estimate(
            weight_format, _floats(rows), _floats(columns), _floats(depth), _floats(counts)
        )
        return with_spread(self.system, Family.MATMULS, estimate)

    def attention(self, query: AttentionQuery, *, cache_format: str, is_causal: bool) -> Times:
        """Attentions with one cache format."""
        estimate = self._attention.estimate(query, _cache(cache_format), is_causal=is_causal)
        return with_spread(self.system, Family.ATTENTION, estimate)

    def latent_attention(self, query: LatentQuery, *, cache_format: str) -> Times:
        """Latent attentions without projections and absorbed matmuls."""
        return with_spread(self.system, Family.LATENT, self._latent.attention(query, _cache(cache_format)))

    def latent_modules(self, query: LatentQuery, *, cache_format: str, module: Module) -> Times:
        """Whole latent attention modules with their projections: of DeepSeek-V3, or of a model with an indexer."""
        estimate = self._latent.modules(query, _cache(cache_format), module)
        return with_spread(self.system, Family.LATENT, estimate)

    def experts(
        self, query: ExpertsQuery, *, weight_format: str, is_gated: bool = True, are_rows_sent: bool = False
    ) -> Times:
        """Routed experts with weights of one format, with a gate or without."""
        estimate = self._experts.estimate(query, weight_format, is_gated=is_gated, are_rows_sent=are_rows_sent)
        return with_spread(self.system, Family.EXPERTS, estimate)

    def recurrent(self, query: RecurrentQuery) -> Times:
        """Gated delta rules with their convolution."""
        return with_spread(self.system, Family.RECURRENT, self._recurrent.estimate(query))

    def all_reduce(self, ranks: Numbers, message_bytes: Numbers) -> Times:
        """The engine's own all-reduce within a node."""
        estimate = self._collectives.all_reduce(_floats(ranks), _floats(message_bytes))
        return with_spread(self.system, Family.COLLECTIVES, estimate)

    def collective(self, kind: CollectiveKind, ranks: Numbers, message_bytes: Numbers) -> Times:
        """A collective of NCCL within a node; the buffer is the whole one, over all ranks."""
        estimate = self._collectives.collective(kind, _floats(ranks), _floats(message_bytes))
        return with_spread(self.system, Family.COLLECTIVES, estimate)

    def collectives(
        self, kind: CollectiveKind, ranks: Sequence[int], message_bytes: Sequence[int], *, by_engine: bool
    ) -> Times:
        """One kind of them; `by_engine`: an all-reduce is the engine's own."""
        sizes = np.array(ranks, np.float64), np.array(message_bytes, np.float64)
        is_own = by_engine and kind is CollectiveKind.ALL_REDUCE
        return self.all_reduce(*sizes) if is_own else self.collective(kind, *sizes)

    def _by_family(self, shapes: Sequence[KernelShape]) -> Iterable[tuple[NDArray[np.intp], Times]]:
        for places, group in _grouped(shapes, MatmulShape, lambda shape: (shape.weight_format,)):
            columns = _columns(group, ("rows", "columns", "depth", "count"))
            yield places, self.matmuls(*columns, weight_format=group[0].weight_format)
        for places, queries in _grouped(shapes, AttentionShape, _attention_key):
            yield places, self._attentions(queries)
        for places, layers in _grouped(shapes, ExpertsShape, _experts_key):
            first = layers[0]
            times = self.experts(
                experts_query(layers),
                weight_format=first.weight_format,
                is_gated=first.is_gated,
                are_rows_sent=first.are_rows_sent,
            )
            yield places, times
        for places, modules in _grouped(shapes, LatentModuleShape, _module_key):
            yield places, self._modules(modules)
        for places, states in _grouped(shapes, StateShape, lambda _: ()):
            yield places, self.recurrent(RecurrentQuery(**_named_columns(states, _STATE_NAMES)))

    def _modules(self, shapes: Sequence[LatentModuleShape]) -> Times:
        first, attentions = shapes[0], [shape.attention for shape in shapes]
        columns = _named_columns(attentions, ("sequences", "queries", "keys", "heads"))
        (rank,) = _columns(attentions, ("latent_rank",))
        return self.latent_modules(
            LatentQuery(**columns, rank=rank),
            cache_format=first.attention.cache_format,
            module=Module(projections=first.projections, sparse_model=first.sparse_model),
        )

    def _attentions(self, shapes: Sequence[AttentionShape]) -> Times:
        first = shapes[0]
        if first.latent_rank is not None:
            query, is_picked = latent_query(shapes)
            estimate = self._latent.attention(query, _cache(first.cache_format)).at_least(TimeOrigin.SCALED, is_picked)
            return with_spread(self.system, Family.LATENT, estimate)
        return self.attention(attention_query(shapes), cache_format=first.cache_format, is_causal=first.is_causal)


def attention_query(shapes: Sequence[AttentionShape]) -> AttentionQuery:
    """Shapes as columns; a window that holds every key is none."""
    names = ("sequences", "queries", "keys", "heads", "key_heads", "width", "value_width")
    columns = _named_columns(shapes, names)
    windows = [0 if shape.window is None or shape.window >= shape.keys else shape.window for shape in shapes]
    return AttentionQuery(**columns, window=np.array(windows, np.float64))


def latent_query(shapes: Sequence[AttentionShape]) -> tuple[LatentQuery, Flags]:
    """Shapes as columns, and which of them see a part of their keys alone.

    Where a query sees fewer keys than there are (an indexer picked them), no neighbour sees the same: each is read as a
    decode step over this many keys.
    """
    names = ("sequences", "queries", "keys", "heads", "latent_rank")
    sequences, queries, keys, heads, rank = _columns(shapes, names)
    seen = np.array([shape.keys if shape.window is None else min(shape.window, shape.keys) for shape in shapes], float)
    is_picked = seen < keys
    query = LatentQuery(
        sequences=np.where(is_picked, sequences * queries, sequences),
        queries=np.where(is_picked, 1.0, queries),
        keys=np.where(is_picked, np.maximum(seen, 1.0), keys),
        heads=heads,
        rank=rank,
    )
    return query, is_picked


def experts_query(shapes: Sequence[ExpertsShape]) -> ExpertsQuery:
    """Shapes as columns, `inner` as on one tensor rank."""
    names = ("tokens", "hidden", "inner", "experts", "chosen", "tensor_ranks", "expert_ranks")
    tokens, hidden, inner, experts, chosen, tensor_ranks, expert_ranks = _columns(shapes, names)
    return ExpertsQuery(
        tokens=tokens,
        hidden=hidden,
        inner=inner / tensor_ranks,
        experts=experts,
        chosen=chosen,
        expert_ranks=expert_ranks,
    )


def _experts_key(shape: ExpertsShape) -> tuple[object, ...]:
    return (shape.weight_format, shape.is_gated, shape.are_rows_sent)


def _attention_key(shape: AttentionShape) -> tuple[object, ...]:
    return (shape.cache_format, shape.is_causal, shape.latent_rank is not None)


def _module_key(shape: LatentModuleShape) -> tuple[object, ...]:
    return (shape.attention.cache_format, shape.projections, shape.sparse_model)


def _grouped(
    shapes: Sequence[KernelShape], kind: type[S], key: Callable[[S], tuple[object, ...]]
) -> Iterable[tuple[NDArray[np.intp], list[S]]]:
    groups: dict[tuple[object, ...], tuple[list[int], list[S]]] = {}
    for place, shape in enumerate(shapes):
        if isinstance(shape, kind):
            places, members = groups.setdefault(key(shape), ([], []))
            places.append(place)
            members.append(shape)
    for places, members in groups.values():
        yield np.array(places, np.intp), members


def _columns(shapes: Sequence[S], names: Sequence[str]) -> list[Floats]:
    """Dimensions as columns. One of 0 leaves a kernel without work, which still takes a launch: it is read as 1."""
    return [np.maximum(np.array([getattr(shape, name) for shape in shapes], np.float64), 1.0) for name in names]


def _named_columns(shapes: Sequence[S], names: Sequence[str]) -> dict[str, Floats]:
    return dict(zip(names, _columns(shapes, names), strict=True))


def _floats(numbers: Numbers) -> Floats:
    return np.asarray(numbers, np.float64)


def _cache(name: str) -> str:
    """The tables know 16-bit caches and fp8; int8 takes as many bytes as fp8."""
    return "fp8" if name.startswith(("float8", "fp8", "int8")) else "bfloat16"
