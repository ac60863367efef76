"""Latent attention from the `mla` tables: attention alone, and whole modules with their projections.

SGLang and TensorRT-LLM measured attention alone, after the projections and the matmuls that absorb the key and value
matrices; vLLM and TensorRT-LLM measured whole modules of DeepSeek-V3: both down and up projections, the absorbed
matmuls, attention and the output projection. The two answer different questions and are never mixed.

Sparse latent attention (an indexer picks 2,048 keys for each query) was measured as whole modules of DeepSeek-V3.2 and
GLM-5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from llm_perf_opt.timing.kernels.grid import FAILED, Configurations
from llm_perf_opt.timing.kernels.kept_rows import Columns
from llm_perf_opt.timing.kernels.tables import ENGINES, SystemForDevice, newest, read_rows
from llm_perf_opt.timing.kernels.times import Estimate, Floats, TableRoofline, TimeOrigin, choose, fastest

RANK, ROTARY, KEY_WIDTH, VALUE_WIDTH = 512, 64, 192, 128  # of the measured models
_QUERY_RANK, _HIDDEN = 1536, 7168  # of DeepSeek-V3, the model with a measured module
PICKED, _INDEX_HEADS, _INDEX_WIDTH = 2048, 64, 128  # of the indexer of DeepSeek-V3.2
SPARSE_MODELS = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
CACHE_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_KEYS = ("num_heads", "batch_size", "isl", "step", "kv_cache_dtype")


class LatentPart(StrEnum):
    """What a table times, and in which stage."""

    PREFILL = "context_mla"
    DECODE = "generation_mla"
    PREFILL_MODULE = "mla_context_module"
    DECODE_MODULE = "mla_generation_module"
    SPARSE_PREFILL_MODULE = "dsa_context_module"
    SPARSE_DECODE_MODULE = "dsa_generation_module"

    @property
    def is_decode(self) -> bool:
        """Whether one query of each sequence runs."""
        return "generation" in self.value

    @property
    def is_module(self) -> bool:
        """Whether projections are in it."""
        return self.value.endswith("module")

    @property
    def is_sparse(self) -> bool:
        """Whether an indexer picks the keys."""
        return self.value.startswith("dsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentQuery:
    """Columns of many latent attentions; `heads` are the heads of one rank, `rank` the width of the latent vector."""

    sequences: Floats
    queries: Floats
    keys: Floats
    heads: Floats
    rank: Floats

    def __len__(self) -> int:
        return len(self.sequences)


def latent_work(query: LatentQuery, part: LatentPart, cache_bytes: float) -> tuple[Floats, Floats]:
    """FLOPs and bytes. Decode multiplies in the latent space; prefill expands keys and values, and is causal."""
    tokens = query.sequences * query.queries
    pairs = query.sequences * query.queries * (query.keys - (query.queries - 1) / 2)
    latent_width = 2 * query.rank + ROTARY
    if part.is_decode or part.is_sparse:
        seen = np.minimum(query.keys, PICKED) if part.is_sparse else query.keys
        flops = 2.0 * tokens * seen * query.heads * latent_width
        moved = query.sequences * seen * (query.rank + ROTARY) * cache_bytes + tokens * query.heads * latent_width * 2.0
    else:
        flops = 2.0 * pairs * query.heads * (KEY_WIDTH + VALUE_WIDTH)
        moved = (tokens + query.sequences * query.keys) * query.heads * (KEY_WIDTH + VALUE_WIDTH) * 2.0
    if part.is_sparse:
        flops = flops + 2.0 * pairs * _INDEX_HEADS * _INDEX_WIDTH
        moved = moved + query.sequences * query.keys * _INDEX_WIDTH
    if part.is_module:
        matrices = _module_values(query)
        flops, moved = flops + 2.0 * tokens * matrices, moved + 2.0 * matrices
    return flops, moved


def _module_values(query: LatentQuery) -> Floats:
    """Weights of a module of DeepSeek-V3 with this many heads on this rank."""
    down = _HIDDEN * (_QUERY_RANK + query.rank + ROTARY)
    per_head = _QUERY_RANK * KEY_WIDTH + query.rank * 2 * VALUE_WIDTH + VALUE_WIDTH * _HIDDEN
    return down + query.heads * per_head


@dataclass(frozen=True, slots=True)
class LatentTable:
    """One part and cache format of one engine on one system."""

    part: LatentPart
    cache_format: str
    roofline: TableRoofline
    shapes: Configurations

    @classmethod
    def of_rows(cls, part: LatentPart, cache_format: str, columns: Columns) -> LatentTable:
        """The table of rows that already have this cache format."""
        query = query_of_rows(part, columns)
        work = latent_work(query, part, CACHE_BYTES[cache_format])
        roofline = TableRoofline.of_rows(columns["seconds"], *work)
        shapes = Configurations.of_rows(
            (query.heads,),
            (query.sequences, query.keys),
            np.log(columns["seconds"]),
            roofline.log_seconds(*work),
            scales=(1.0,),
            envelope=FAILED,
        )
        return cls(part, cache_format, roofline, shapes)

    def estimate(self, query: LatentQuery, system: SystemForDevice) -> Estimate:
        """Times. Queries that are not as many as the keys are read at the length that has as many pairs."""
        length = query.keys
        if not self.part.is_decode:
            pairs = query.queries * (query.keys - (query.queries - 1) / 2)
            length = np.where(query.queries == query.keys, query.keys, np.sqrt(2.0 * pairs + 0.25) - 0.5)
        reading = self.shapes.read((query.heads,), (query.sequences, np.maximum(length, 1.0)))
        work = latent_work(query, self.part, CACHE_BYTES[self.cache_format])
        roofline = self.roofline.scaled(system.compute, system.bandwidth)
        estimate = Estimate(
            np.exp(reading.relative + roofline.log_seconds(*work)), reading.codes, reading.off_grid
        ).at_least(TimeOrigin.SCALED, query.rank != RANK)
        return estimate if system.is_own else estimate.at_least(TimeOrigin.SCALED)


def query_of_rows(part: LatentPart, columns: Columns) -> LatentQuery:
    """The attentions that rows describe."""
    keys = (columns["isl"] + columns["step"]).astype(np.float64)
    heads = columns["num_heads"].astype(np.float64)
    return LatentQuery(
        sequences=columns["batch_size"].astype(np.float64),
        queries=np.ones_like(keys) if part.is_decode else columns["isl"].astype(np.float64),
        keys=keys,
        heads=heads,
        rank=np.full_like(heads, RANK),
    )


def latent_rows(
    system: str, engine: str, part: LatentPart, *, projections: str | None = None, model: str | None = None
) -> Columns | None:
    """The measured rows of one part, from the first token on; of modules the rows of a format and a model."""
    table = newest(system, part.value, engine)
    if table is None:
        return None
    conditions = ["isl + step >= 1" if part.is_decode else "isl >= 1 and step = 0"]
    if projections is not None:
        conditions.append(f"gemm_type = '{projections}'")
    if model is not None:
        conditions.append(f"model = '{model}'")
    columns = read_rows(table, _KEYS, where=" and ".join(conditions))
    return columns if len(columns["seconds"]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A whole module: the table format of its projections, and the model with the same indexer; None: DeepSeek-V3."""

    projections: str = "bfloat16"
    sparse_model: str | None = None


class LatentTables:
    """The latent attention of a system: the engine's own tables; where it measured none, the fastest of any engine.

    Modules always take the fastest: some of them were measured bound by the host.
    """

    def __init__(self, system: SystemForDevice, engine: str | None) -> None:
        self._system, self._engine = system, engine
        self._tables: dict[tuple[str, LatentPart, str, Module | None], LatentTable | None] = {}

    def attention(self, query: LatentQuery, cache_format: str) -> Estimate:
        """Attention alone: projections and absorbed matmuls are other kernels."""
        return self._both(LatentPart.DECODE, LatentPart.PREFILL, query, cache_format, None)

    def modules(self, query: LatentQuery, cache_format: str, module: Module) -> Estimate:
        """Whole modules."""
        if module.sparse_model is None:
            return self._both(LatentPart.DECODE_MODULE, LatentPart.PREFILL_MODULE, query, cache_format, module)
        return self._both(
            LatentPart.SPARSE_DECODE_MODULE, LatentPart.SPARSE_PREFILL_MODULE, query, cache_format, module
        )

    def _both(
        self, decode: LatentPart, prefill: LatentPart, query: LatentQuery, cache_format: str, module: Module | None
    ) -> Estimate:
        is_decode = query.queries == 1
        best = Estimate.unknown(len(query))
        for part, wanted in ((decode, is_decode), (prefill, ~is_decode)):
            if wanted.any():
                best = choose(wanted, self._of_part(part, query, cache_format, module), best)
        return best

    def _of_part(self, part: LatentPart, query: LatentQuery, cache_format: str, module: Module | None) -> Estimate:
        own = () if self._engine is None or part.is_module else (self._engine,)
        for wanted_cache in dict.fromkeys((cache_format, "bfloat16")):
            for engines in (own, ENGINES):
                tables = [self._table(engine, part, wanted_cache, module) for engine in engines]
                if estimates := [table.estimate(query, self._system) for table in tables if table is not None]:
                    return fastest(estimates)
        return Estimate.unknown(len(query))

    def _table(self, engine: str, part: LatentPart, cache_format: str, module: Module | None) -> LatentTable | None:
        key = (engine, part, cache_format, module)
        if key not in self._tables:
            projections, model = (None, None) if module is None else (module.projections, module.sparse_model)
            columns = latent_rows(self._system.system, engine, part, projections=projections, model=model)
            keep = None if columns is None else columns["kv_cache_dtype"] == cache_format
            self._tables[key] = (
                LatentTable.of_rows(part, cache_format, {name: column[keep] for name, column in columns.items()})
                if columns is not None and keep is not None and keep.any()
                else None
            )
        return self._tables[key]
