"""How long the forwards of a serving engine take on one rank, from tables of measured kernels.

Between two captured kernels a device rests for about a microsecond: work starts when the last block of the kernel
before has ended. Tables time kernels in a row of their own kind, so that rest is in none of them; `LAUNCH_GAP_S` is the
one figure here that was fitted to served requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from llm_perf_opt.analyses.kernels.exchanges import Exchange
from llm_perf_opt.analyses.kernels.kernel_tables import KernelTables, kernel_tables
from llm_perf_opt.analyses.kernels.latent import LatentQuery, Module
from llm_perf_opt.analyses.kernels.recurrent import MEASURED_KERNELS, RecurrentQuery
from llm_perf_opt.analyses.kernels.times import LAUNCH_GAP_S, TimeOrigin, Times
from llm_perf_opt.analyses.serving.engine_blocks import DecoderPart, EngineBlocks
from llm_perf_opt.analyses.serving.engine_step import (
    EngineWork,
    Forward,
    StateWork,
    VectorWork,
    forward_kernels,
)
from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.hardware import Device, find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.ops.kernel_shape import AttentionShape, ExpertsShape, KernelShape, ProductShape

VECTOR_FLOOR_S = 1.5e-6  # half of what the tables' own tool grants a kernel that is bound by its bytes, gap included
VECTOR_BANDWIDTH = 0.8  # share of the data sheet, by the same tool's system files
_EXCHANGES = {
    CollectiveKind.ALL_GATHER: Exchange.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: Exchange.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: Exchange.ALL_TO_ALL,
}
_MODULE_WIDTHS = frozenset({7168, 1536})  # hidden and query width of the model whose latent attention was measured
_SPARSE_MODULES = {  # the same of models that look at chosen keys
    frozenset({7168, 1536}): "deepseek-ai/DeepSeek-V3.2",
    frozenset({6144, 2048}): "zai-org/GLM-5",
}


class WorkKind(StrEnum):
    """What a share of a forward's time is spent on."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    EXPERTS = "experts"
    STATES = "recurrent states"
    VECTOR = "vector kernels"
    LINKS = "collectives"
    GAPS = "gaps between kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTime:
    """One forward of a rank. `unknown` kernels are in no table and in no sum."""

    by_kind: Mapping[WorkKind, float]
    by_origin: Mapping[TimeOrigin, float]
    kernels: int
    unknown: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedForward:
    """A forward and who runs it."""

    blocks: EngineBlocks
    forward: Forward
    plan: ParallelPlan


class TimesForwards(Protocol):
    """Whoever knows how long forwards take."""

    def times(self, asked: Sequence[AskedForward]) -> list[ForwardTime]:
        """The time of each forward."""
        ...


class EngineTimer:
    """The forwards of an engine on a device; many are asked at once, since tables answer columns."""

    def __init__(self, device: str, engine: str | None) -> None:
        self._tables: KernelTables = kernel_tables(device, engine)
        self._device: Device = find_device(device)
        self._has_modules = engine in ("vllm", "trtllm")

    def times(self, asked: Sequence[AskedForward]) -> list[ForwardTime]:
        """The time of each forward."""
        sums = [_Sum() for _ in asked]
        shapes: list[tuple[_Sum, KernelShape, int]] = []
        exchanges: list[tuple[_Sum, Collective, int]] = []
        states: list[tuple[_Sum, StateWork, int]] = []
        for found, one in zip(sums, asked, strict=True):
            for work, count in self._works(one, found):
                found.kernels += count
                if isinstance(work, VectorWork):
                    found.add(WorkKind.VECTOR, TimeOrigin.ROOFLINE, count * self._vector_s(work))
                elif isinstance(work, StateWork):
                    states.append((found, work, count))
                elif isinstance(work, Collective):
                    exchanges.append((found, work, count))
                else:
                    shapes.append((found, work, count))
        self._add_shapes(shapes)
        self._add_exchanges(exchanges)
        self._add_states(states)
        return [found.result() for found in sums]

    def _works(self, one: AskedForward, found: _Sum) -> list[tuple[EngineWork, int]]:
        """The kernels of a forward; a latent attention that was measured whole is added to `found` and left out."""
        works = list(forward_kernels(one.blocks, one.forward, one.plan))
        module = _measured_module(one.blocks)
        if module is None or not (self._has_modules or module.sparse_model):
            return works
        attentions = [(work, count) for work, count in works if isinstance(work, AttentionShape)]
        measured = [self._module_time(work, one.forward, module) for work, _ in attentions]
        if not all(times.is_known[0] for times in measured):
            return works
        for (_, count), times in zip(attentions, measured, strict=True):
            found.add(WorkKind.ATTENTION, times.origins[0], count * float(times.seconds[0]))
            found.kernels += count
        kept = tuple(product for product in one.blocks.products if product.part is not DecoderPart.LATENT)
        bare = replace(one.blocks, products=kept, attentions=(), norms=())
        return list(forward_kernels(bare, one.forward, one.plan))

    def _module_time(self, shape: AttentionShape, forward: Forward, module: Module) -> Times:
        query = LatentQuery(
            sequences=np.array([shape.sequences], float),
            queries=np.array([shape.queries], float),
            keys=np.array([forward.keys], float),
            heads=np.array([shape.heads], float),
            rank=np.array([shape.latent_rank or 0], float),
        )
        return self._tables.latent_modules(query, cache_format=shape.cache_format, module=module)

    def _vector_s(self, work: VectorWork) -> float:
        return VECTOR_FLOOR_S + work.bytes_moved / (VECTOR_BANDWIDTH * self._device.bandwidth_bytes_per_s)

    def _add_shapes(self, shapes: Sequence[tuple[_Sum, KernelShape, int]]) -> None:
        times = self._tables.times([shape for _, shape, _ in shapes])
        _add(shapes, times, [KINDS[type(shape)] for _, shape, _ in shapes])

    def _add_states(self, states: Sequence[tuple[_Sum, StateWork, int]]) -> None:
        """By the measured rule where a table has it, else by the bytes of the states."""
        if not states:
            return
        times = self._tables.recurrent(_recurrent_query([work for _, work, _ in states]))
        for (found, work, count), seconds, origin in zip(states, times.seconds, times.origins, strict=True):
            if work.value_heads and not math.isnan(seconds):
                found.add(WorkKind.STATES, origin, count * float(seconds))
                found.kernels += (MEASURED_KERNELS - 1) * count
            else:
                by_bytes = self._vector_s(VectorWork(bytes_moved=work.bytes_moved))
                found.add(WorkKind.STATES, TimeOrigin.ROOFLINE, count * by_bytes)

    def _add_exchanges(self, exchanges: Sequence[tuple[_Sum, Collective, int]]) -> None:
        for kind in dict.fromkeys(work.kind for _, work, _ in exchanges):
            some = [one for one in exchanges if one[1].kind is kind]
            ranks = np.array([work.group.size for _, work, _ in some], float)
            payload = np.array([work.payload_bytes for _, work, _ in some], float)
            times = (
                self._tables.all_reduce(ranks, payload)
                if kind is CollectiveKind.ALL_REDUCE
                else self._tables.collective(_EXCHANGES[kind], ranks, payload)
            )
            _add(some, times, [WorkKind.LINKS] * len(some))


def _recurrent_query(works: Sequence[StateWork]) -> RecurrentQuery:
    return RecurrentQuery(
        sequences=np.array([max(1.0, work.sequences) for work in works]),
        queries=np.array([work.queries for work in works], float),
        key_heads=np.array([max(1, work.key_heads) for work in works], float),
        value_heads=np.array([max(1, work.value_heads) for work in works], float),
    )


KINDS: Mapping[type, WorkKind] = {
    ProductShape: WorkKind.PRODUCTS,
    AttentionShape: WorkKind.ATTENTION,
    ExpertsShape: WorkKind.EXPERTS,
    VectorWork: WorkKind.VECTOR,
    StateWork: WorkKind.STATES,
}


class _Sum:
    """What is gathered of one forward."""

    def __init__(self) -> None:
        self.by_kind: Counter[WorkKind] = Counter()
        self.by_origin: Counter[TimeOrigin] = Counter()
        self.kernels = 0
        self.unknown = 0

    def add(self, kind: WorkKind, origin: TimeOrigin, seconds: float) -> None:
        self.by_kind[kind] += seconds  # type: ignore[assignment]
        self.by_origin[origin] += seconds  # type: ignore[assignment]

    def result(self) -> ForwardTime:
        gaps = LAUNCH_GAP_S * self.kernels
        return ForwardTime(
            by_kind={**self.by_kind, WorkKind.GAPS: gaps},
            by_origin=dict(self.by_origin),
            kernels=self.kernels,
            unknown=self.unknown,
        )


def _add(asked: Sequence[tuple[_Sum, object, int]], times: Times, kinds: Sequence[WorkKind]) -> None:
    for (found, _, count), seconds, origin, kind in zip(asked, times.seconds, times.origins, kinds, strict=True):
        if math.isnan(seconds):
            found.unknown += count
        else:
            found.add(kind, origin, count * float(seconds))


def _measured_module(blocks: EngineBlocks) -> Module | None:
    """The measured module with the widths of these blocks; None: none has them."""
    latent = [product for product in blocks.products if product.part is DecoderPart.LATENT]
    depths = {product.depth for product in latent}
    if not latent:
        return None
    projections = "fp8_block" if latent[0].weight_format.startswith(("fp8", "float8")) else "bfloat16"
    if all(layer.span.chosen is None for layer in blocks.attentions):
        return Module(projections=projections) if depths >= _MODULE_WIDTHS else None
    model = next((name for widths, name in _SPARSE_MODULES.items() if depths >= widths), None)
    return None if model is None else Module(projections=projections, sparse_model=model)
