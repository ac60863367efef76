"""Rates from tables of measured kernels; what no table describes takes the rates of the data sheet.

The expected time of a kernel is the table's, its ends are the 10 % and 90 % quantiles of the table's error on rows that
were left out. A time of the roofline is expected in the geometric middle of its ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.collectives import Collective, CollectiveKind
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import Device, load_devices
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.kernel_shape import (
    AttentionShape,
    ExpertsShape,
    KernelShape,
    LatentModuleShape,
    ProductShape,
    StateShape,
)
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, RatesAbove
from llm_perf_opt.timing.eager_time import eager_time, launched_alone
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.kernels.exchanges import Exchange
from llm_perf_opt.timing.kernels.kernel_tables import KernelTables, kernel_tables
from llm_perf_opt.timing.kernels.recurrent import MEASURED_KERNELS
from llm_perf_opt.timing.kernels.tables import data_folder, missing_packages, system_of
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S, TimeOrigin, Times
from llm_perf_opt.timing.lower_bound import BoundBy, LowerBound, fastest_peak
from llm_perf_opt.timing.rates import Band, Piece, Pieces, RateTime
from llm_perf_opt.timing.stage_work import StageWork
from llm_perf_opt.timing.step.request_time import banded, request_fit

SOURCE = "measured kernels"
EAGER_TABLES = "vllm"  # whose 16-bit products are those of plain PyTorch
UNKNOWN_SPREAD = (0.5, 2.0)  # of a table whose error on rows left out was not measured
_EXCHANGES = {
    CollectiveKind.ALL_REDUCE: Exchange.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: Exchange.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: Exchange.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: Exchange.ALL_TO_ALL,
}


VECTOR_FLOOR_S = 1.5e-6  # half of what the tables' own tool grants a kernel that is bound by its bytes, gap included
VECTOR_BANDWIDTH = 0.8  # share of the data sheet, by the same tool's system files
MODULE_ENGINES = ("vllm", "trtllm")  # whose dense modules of latent attention were measured whole


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel without the rest before it, which is `launches` of the device's where a row is the sum of several."""

    origin: TimeOrigin
    band: Band
    launches: int = 1

    @property
    def seconds(self) -> float:
        """What is expected."""
        return self.band.expected or 0.0


_FAMILIES: Mapping[type, str] = {
    ProductShape: "products",
    ExpertsShape: "experts",
    LatentModuleShape: "latent attention",
    StateShape: "recurrent layers",
}


@dataclass(frozen=True, slots=True)
class KernelTableRates(RatesAbove):
    """Measured kernels of a device, or of the nearest that was measured."""

    tables: KernelTables
    _known: dict[KernelShape | Collective, KernelTime | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The origin of its times."""
        return SOURCE

    @property
    def engine(self) -> str | None:
        """That of the tables, where an engine runs the kernels."""
        return self.tables.engine if self.is_engine else None

    def notes(self) -> Iterator[Note]:
        """Who launches the kernels, and whose tables time them."""
        yield from self.below.notes()
        engine = self.tables.engine
        if not self.is_engine:
            whose = "those of plain PyTorch products; PyTorch's own kernels are by recordings (docs/eager-kernels.md)"
        else:
            whose = "the fastest of any engine" if engine is None else f"those of {engine}"
        yield Note(
            f"Kernel times are from measured tables of {self.tables.system.system}, {whose}; docs/kernel-tables.md "
            "says what they rest on. Low and high are 10 % and 90 % quantiles of the error on rows left out; "
            "docs/engine-fusions.md has the rule of a sum. Work that no table describes is timed by the roofline."
        )
        if self.is_engine:
            served = request_fit().tpot
            yield Note(
                f"Each kernel is charged the {LAUNCH_GAP_S * 1e6:.1f} us that a device rests before it. The band of a "
                f"stage is at least {served.low:.2f} to {served.high:.2f} of what is expected: as far as measured "
                "steps of served models were from it (docs/serving-times.md)."
            )
        if (difference := self.tables.system.difference) is not None:
            yield Note(f"The tables were {difference}.")

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, Pieces]:
        """The kernels of each stage, as written or as an engine fuses them."""
        fused = fused_kernels(graph) if self.is_engine else {}
        kernels_of_stages = {work.name: tuple(fused.get(work.name, work.kernels).items()) for work in works}
        self.learn(piece for pieces in kernels_of_stages.values() for piece, _ in pieces if isinstance(piece, Kernel))
        return kernels_of_stages

    def learn(self, kernels: Iterable[Kernel]) -> None:
        """Ask the tables for all shapes at once, which is far quicker than one by one."""
        shapes = {kernel.shape for kernel in kernels if kernel.shape is not None} - self._known.keys()
        if ordered := [shape for shape in shapes if shape is not None]:
            self._learn(ordered)

    def _learn(self, shapes: Sequence[KernelShape]) -> None:
        self._known.update(zip(shapes, _answers(self.tables.times(shapes)), strict=True))

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The device time of one launch, by the first that describes it: recordings of eager runs, a table, a roof."""
        below = self.below.duration(piece)
        if not isinstance(piece, Kernel) or (below is None and piece.kind is not KernelKind.COMMUNICATION):
            return below
        if not self.is_engine and (recorded := eager_time(piece, self.device)) is not None:
            return (recorded,)
        time = self._in_tables(piece)
        if time is None:
            return None if below is None else tuple(self._by_roofline(time) for time in below)
        band = _behind_another(time) if self.is_engine else launched_alone(time.band, piece, self.device)
        bound_by = BoundBy.COMMUNICATION if below is None else below[0].bound_by
        return (RateTime(source=SOURCE, rate=_family(piece), band=band, bound_by=bound_by, origin=str(time.origin)),)

    def measured(self, kernel: Kernel) -> KernelTime | None:
        """A captured kernel by its table or by its roofline; None: neither describes it."""
        time = self._in_tables(kernel)
        return self._by_data_sheet(kernel) if time is None and self.is_engine else time

    def _in_tables(self, kernel: Kernel) -> KernelTime | None:
        """By its own table, of an exchange also by the links, of an engine's vector kernel by its bytes."""
        if kernel.kind is KernelKind.COMMUNICATION:
            return self._exchange(kernel.collective) or self._by_data_sheet(kernel)
        answer = self._in_table(kernel.shape)
        if answer is not None and self.is_engine:
            return self._from_memory(kernel, answer)
        if answer is None and kernel.kind is KernelKind.VECTOR and self.is_engine:
            return by_bytes(kernel, self.device)
        return answer

    def _from_memory(self, kernel: Kernel, found: KernelTime) -> KernelTime:
        """A measured kernel whose weights or cache a step reads from memory, at the best bandwidth that tables show.

        Rows of small shapes were measured with weights in a cache. Those of experts were not, but may have reached
        fewer of them than an even routing would: they are held to the full bandwidth alone.
        """
        read_s = (kernel.bytes_moved - kernel.avoidable_bytes) / self.device.bandwidth_bytes_per_s
        compute_s = kernel.flops / fastest_peak(kernel.dtype, self.device)
        share = 1.0 if isinstance(kernel.shape, ExpertsShape) else self.best_bandwidth_share
        likely_s = max(read_s / share, compute_s)
        band = found.band.expected_at_least(likely_s).at_least(max(read_s, compute_s))
        origin = found.origin if band.expected == found.band.expected else TimeOrigin.ROOFLINE
        return replace(found, band=band, origin=origin)

    def _by_data_sheet(self, kernel: Kernel) -> KernelTime | None:
        """What no table has: an exchange by the links of the cluster, a product of 32 bits by its roofline."""
        return by_data_sheet(kernel, self.below)

    def knows(self, kernel: Kernel) -> bool:
        """Whether a table has its shape."""
        return self._in_table(kernel.shape) is not None

    def _in_table(self, shape: KernelShape | None) -> KernelTime | None:
        if shape is None or (isinstance(shape, StateShape) and not shape.value_heads):
            return None
        if isinstance(shape, LatentModuleShape) and not shape.sparse_model and self.tables.engine not in MODULE_ENGINES:
            return None
        if shape not in self._known:
            self._learn([shape])
        answer = self._known[shape]
        return replace(answer, launches=MEASURED_KERNELS) if answer and isinstance(shape, StateShape) else answer

    def likely_s(self, lower_bound: LowerBound) -> float:
        """Bytes at the best bandwidth that the tables themselves show: a sum of kernels below that read from caches."""
        return max(lower_bound.seconds, lower_bound.bandwidth_s / self.best_bandwidth_share)

    @property
    def best_bandwidth_share(self) -> float:
        """Of the data sheet's; that of other sources where the tables have none, or more than all of it."""
        best = self.tables.best_bytes_per_s() / self.device.bandwidth_bytes_per_s
        return best if 0.0 < best < 1.0 else self.below.best_bandwidth_share

    def of_stage(self, kernels: Band) -> Band:
        """In an engine at least as wide as measured over expected steps of served models; eager kernels as they are."""
        if not self.is_engine or kernels.expected is None:
            return kernels
        served = banded(kernels.expected, request_fit().tpot)
        return Band(min(kernels.low, served.low), max(kernels.high, served.high), kernels.expected)

    def _by_roofline(self, time: RateTime) -> RateTime:
        """In the middle of its ends."""
        band = time.band.expected_in_the_middle()
        if self.is_engine:
            band += Band(LAUNCH_GAP_S, LAUNCH_GAP_S, LAUNCH_GAP_S)
        return replace(time, band=band, origin=str(TimeOrigin.ROOFLINE))

    def _exchange(self, collective: Collective | None) -> KernelTime | None:
        """Within one node; between nodes no table was measured. Without a cluster all ranks are in one."""
        if collective is None or collective.kind not in _EXCHANGES:
            return None
        ranks = collective.group.size
        if self.cluster is not None:
            placement = self.cluster.placement(collective.group)
            if placement is None or placement.nodes > 1:
                return None
            ranks = placement.ranks
        if ranks < 2:
            return None
        if collective not in self._known:
            exchange, size = _EXCHANGES[collective.kind], collective.payload_bytes
            times = self.tables.one_exchange(exchange, ranks, size, by_engine=self.is_engine)
            self._known[collective] = next(_answers(times))
        return self._known[collective]


def by_bytes(kernel: Kernel, device: Device) -> KernelTime:
    """A vector kernel of an engine: a floor, and the bytes that it needs."""
    needed = kernel.bytes_moved - kernel.avoidable_bytes
    seconds = VECTOR_FLOOR_S + needed / (VECTOR_BANDWIDTH * device.bandwidth_bytes_per_s)
    fast, slow = UNKNOWN_SPREAD
    return KernelTime(TimeOrigin.ROOFLINE, Band(seconds * fast, seconds * slow, seconds))


def by_data_sheet(kernel: Kernel, below: DataSheetRates) -> KernelTime | None:
    """The middle of what a data sheet allows; None: it does not describe the kernel."""
    found = below.duration(kernel)
    return None if found is None else KernelTime(TimeOrigin.ROOFLINE, found[0].band.expected_in_the_middle())


@dataclass(frozen=True, slots=True)
class SheetKernels:
    """Kernels of an engine on a device that no table comes near: every time is that of its data sheet."""

    below: DataSheetRates

    def learn(self, kernels: Iterable[Kernel]) -> None:
        """Nothing: there is no table to ask."""

    def knows(self, kernel: Kernel) -> bool:
        """No shape was measured."""
        return False

    def measured(self, kernel: Kernel) -> KernelTime | None:
        """By its bytes, or by the rates of the data sheet; None: neither describes it."""
        if kernel.kind is KernelKind.VECTOR:
            return by_bytes(kernel, self.below.device)
        return by_data_sheet(kernel, self.below)


def _behind_another(kernel: KernelTime) -> Band:
    """A captured kernel starts when the one before has ended, after a short rest."""
    rest = LAUNCH_GAP_S * kernel.launches
    return kernel.band + Band(rest, rest, rest)


def _answers(times: Times) -> Iterator[KernelTime | None]:
    """Per kernel its origin and band; None: no table describes it."""
    for seconds, origin, low, high in zip(
        times.seconds.tolist(), times.origins, times.spread_low.tolist(), times.spread_high.tolist(), strict=True
    ):
        if math.isnan(seconds):
            yield None
            continue
        fast, slow = UNKNOWN_SPREAD if math.isnan(low) or math.isnan(high) else (low, high)
        yield KernelTime(origin, Band(seconds * min(fast, 1.0), seconds * max(slow, 1.0), seconds))


def _family(kernel: Kernel) -> str:
    """The table that times it."""
    shape = kernel.shape
    if kernel.collective is not None:
        return str(kernel.collective.kind)
    if isinstance(shape, AttentionShape):
        return "attention" if shape.latent_rank is None else "latent attention"
    return _FAMILIES.get(type(shape), f"{kernel.kind}, by its bytes")


def table_rates(below: DataSheetRates, engine: str | None = None) -> KernelTableRates | None:
    """Measured kernels above a data sheet; None: the tables are not installed, or none comes near the device."""
    if missing_packages():
        return None
    system = system_of(below.device)
    if system is None:
        return None
    wanted = engine if below.is_engine else EAGER_TABLES
    is_listed = load_devices().devices.get(below.device.id) == below.device
    tables = kernel_tables(below.device.id, wanted) if is_listed else KernelTables(system, wanted)
    return KernelTableRates(below, tables)


def require_tables(device: Device) -> None:
    """Raise where measured kernels cannot time a device: the tables are missing, or none comes near it."""
    data_folder()
    if system_of(device) is None:
        raise PerfOptError(
            f"No measured kernels describe {device.name}.",
            why="tables exist for NVIDIA GPUs and one of Intel, and other NVIDIA GPUs are scaled from those",
            fix="leave --rates and --engine out: its times then come from its data sheet",
        )
