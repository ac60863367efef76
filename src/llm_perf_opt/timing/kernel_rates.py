"""Rates from tables of measured kernels; what no table describes takes the rates of the data sheet.

The expected time of a kernel is the table's, low and high are the 10 % and 90 % quantiles of the table's error on rows
that were left out. A time of the roofline is expected in the geometric middle of its ends.
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
    MatmulShape,
    StateShape,
)
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import DataSheetRates, RatesAbove
from llm_perf_opt.timing.eager_time import eager_time, launched_alone
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.kernels.collectives import NCCL_NAMES
from llm_perf_opt.timing.kernels.kernel_tables import KernelTables, kernel_tables, spread_tables
from llm_perf_opt.timing.kernels.recurrent import MEASURED_KERNELS
from llm_perf_opt.timing.kernels.tables import data_folder, missing_packages, system_of, tables_label
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S, TimeOrigin, Times
from llm_perf_opt.timing.lower_bound import BoundBy, LowerBound, fastest_peak
from llm_perf_opt.timing.rates import Band, Piece, RateTime, StagePieces
from llm_perf_opt.timing.sheet_columns import seconds_by_bytes
from llm_perf_opt.timing.stage_work import StageWork
from llm_perf_opt.timing.step.request_time import banded, request_fit

SOURCE = "measured kernels"
EAGER_TABLES = "vllm"  # its 16-bit matmuls are plain PyTorch matmuls
_BANDWIDTH = "best share of the bandwidth"
UNKNOWN_SPREAD = (0.5, 2.0)  # of a table without a measured error on rows left out
MODULE_ENGINES = ("vllm", "trtllm")  # their dense modules of latent attention were measured whole


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel without the gap before it; a row that is the sum of several kernels has `launches` gaps."""

    origin: TimeOrigin
    band: Band
    launches: int = 1

    @property
    def seconds(self) -> float:
        """What is expected."""
        return self.band.expected or 0.0


_FAMILIES: Mapping[type, str] = {
    MatmulShape: "matmuls",
    ExpertsShape: "experts",
    LatentModuleShape: "latent attention",
    StateShape: "recurrent layers",
}


@dataclass(frozen=True, slots=True)
class KernelTableRates(RatesAbove):
    """Measured kernels of a device, or of the nearest that was measured."""

    tables: KernelTables
    _known: dict[KernelShape | Collective, KernelTime | None] = field(default_factory=dict, compare=False, repr=False)
    _rates: dict[str, float] = field(default_factory=dict, compare=False, repr=False)  # of dtypes, and the bandwidth

    @property
    def name(self) -> str:
        """The origin of its times."""
        return SOURCE

    @property
    def engine(self) -> str | None:
        """The engine of the tables, where one runs the kernels."""
        return self.tables.engine if self.is_engine else None

    def notes(self) -> Iterator[Note]:
        """Who launches the kernels, and which tables time them."""
        yield from self.below.notes()
        engine = self.tables.engine
        if not self.is_engine:
            kernels = (
                "plain PyTorch matmuls; PyTorch's own kernels are timed by recordings (docs/evidence/eager-kernels.md)"
            )
        else:
            kernels = "the fastest kernels of any engine" if engine is None else f"the kernels of {engine}"
        yield Note(
            f"Kernel times come from tables measured on {self.tables.system.system}: {kernels}, of {tables_label()}. "
            "docs/evidence/kernel-tables.md explains the tables. Low and high are the 10 % and 90 % quantiles of their "
            f"error on rows left out of {spread_tables()}; docs/how/one-step.md explains how bands add up. Work "
            "that no table describes is timed by the roofline."
        )
        if self.is_engine:
            served = request_fit().tpot
            yield Note(
                f"Each kernel includes a gap of {LAUNCH_GAP_S * 1e6:.1f} us before it. The band of a stage is at least "
                f"as wide as {served.low:.2f} to {served.high:.2f} times the expected time: that is how far measured "
                "steps of served models differ from it (docs/evidence/serving-times.md)."
            )
        if (difference := self.tables.system.difference) is not None:
            yield Note(f"The tables were {difference}.")

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """The kernels of each stage, as written or as an engine fuses them."""
        fused = fused_kernels(graph) if self.is_engine else {}
        kernels_of_stages = {work.name: fused.get(work.name, work.kernels) for work in works}
        self.learn(kernel for kernels in kernels_of_stages.values() for kernel in kernels)
        return {name: StagePieces(pieces=tuple(kernels.items())) for name, kernels in kernels_of_stages.items()}

    def learn(self, kernels: Iterable[Kernel]) -> None:
        """Ask the tables for all shapes at once, which is far quicker than one by one."""
        wanted: set[KernelShape | Collective] = set()
        for kernel in kernels:
            if kernel.shape is not None:
                wanted.add(kernel.shape)
            elif kernel.collective is not None:
                wanted.add(kernel.collective)
        new = wanted - self._known.keys()
        if shapes := [shape for shape in new if not isinstance(shape, Collective)]:
            self._known.update(zip(shapes, _answers(self.tables.times(shapes)), strict=True))
        self._learn_collectives([collective for collective in new if isinstance(collective, Collective)])

    def _learn_collectives(self, collectives: Iterable[Collective]) -> None:
        """Collectives within one node; between nodes no table was measured. Without a cluster all ranks are in one."""
        sizes: dict[CollectiveKind, list[tuple[Collective, int]]] = {}
        for collective in collectives:
            self._known[collective] = None
            ranks = collective.group.size
            if self.cluster is not None:
                placement = self.cluster.placement(collective.group)
                ranks = 0 if placement is None or placement.nodes > 1 else placement.ranks
            if ranks >= 2 and collective.kind in NCCL_NAMES:
                sizes.setdefault(collective.kind, []).append((collective, ranks))
        for kind, measured in sizes.items():
            payloads = [collective.payload_bytes for collective, _ in measured]
            times = self.tables.collectives(kind, [ranks for _, ranks in measured], payloads, by_engine=self.is_engine)
            self._known.update(zip((collective for collective, _ in measured), _answers(times), strict=True))

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
        """By its own table, a collective also by the links, a vector kernel of an engine by its bytes."""
        if kernel.kind is KernelKind.COMMUNICATION:
            return self._collective(kernel.collective) or self._by_data_sheet(kernel)
        answer = self._in_table(kernel.shape)
        if answer is not None and self.is_engine:
            return from_memory(kernel, answer, self.device, self.best_bandwidth_share)
        if answer is None and kernel.kind is KernelKind.VECTOR and self.is_engine:
            return by_bytes(kernel, self.device)
        return answer

    def _by_data_sheet(self, kernel: Kernel) -> KernelTime | None:
        """What no table has: a collective by the links of the cluster, a matmul of 32 bits by its roofline."""
        times = self.below.duration(kernel)
        return None if times is None else KernelTime(TimeOrigin.ROOFLINE, times[0].band.expected_in_the_middle())

    def knows(self, kernel: Kernel) -> bool:
        """Whether a table has its shape."""
        return self._in_table(kernel.shape) is not None

    def _in_table(self, shape: KernelShape | None) -> KernelTime | None:
        # Tables have the gated delta rule alone; a rule without known heads goes by its bytes.
        if shape is None or (isinstance(shape, StateShape) and not shape.value_heads):
            return None
        if isinstance(shape, LatentModuleShape) and not shape.sparse_model and self.tables.engine not in MODULE_ENGINES:
            return None
        if shape not in self._known:
            self._known.update(zip([shape], _answers(self.tables.times([shape])), strict=True))
        answer = self._known[shape]
        return replace(answer, launches=MEASURED_KERNELS) if answer and isinstance(shape, StateShape) else answer

    def likely_s(self, lower_bound: LowerBound) -> float:
        """Bytes at the best bandwidth that the tables themselves show: a sum of kernels below that read from caches."""
        return max(lower_bound.seconds, lower_bound.bandwidth_s / self.best_bandwidth_share)

    @property
    def best_bandwidth_share(self) -> float:
        """A share of the data sheet's bandwidth, by other sources where the tables have none or more than all of it."""
        if _BANDWIDTH not in self._rates:
            best = self.tables.best_bytes_per_s() / self.device.bandwidth_bytes_per_s
            self._rates[_BANDWIDTH] = best if 0.0 < best < 1.0 else self.below.best_bandwidth_share
        return self._rates[_BANDWIDTH]

    def of_stage(self, kernels: Band) -> Band:
        """In an engine at least as wide as measured over expected steps of served models; eager kernels as they are."""
        if not self.is_engine or kernels.expected is None:
            return kernels
        served = banded(kernels.expected, request_fit().tpot)
        return Band(min(kernels.low, served.low), max(kernels.high, served.high), kernels.expected)

    def _by_roofline(self, time: RateTime) -> RateTime:
        """Expected in the middle of low and high."""
        band = time.band.expected_in_the_middle()
        if self.is_engine:
            band += Band(LAUNCH_GAP_S, LAUNCH_GAP_S, LAUNCH_GAP_S)
        return replace(time, band=band, origin=str(TimeOrigin.ROOFLINE))

    def _collective(self, collective: Collective | None) -> KernelTime | None:
        """By a table; None: it has none."""
        if collective is None:
            return None
        if collective not in self._known:
            self._learn_collectives([collective])
        return self._known[collective]


def from_memory(kernel: Kernel, time: KernelTime, device: Device, bandwidth_share: float) -> KernelTime:
    """A kernel with weights or a cache that a step reads from memory, at the best bandwidth that anybody measured.

    Rows of small shapes were measured with weights in a cache, where a data sheet may place them too. Rows of
    experts were not, but may have reached fewer experts than an even routing would: only the full bandwidth holds.
    """
    read_s = (kernel.bytes_moved - kernel.avoidable_bytes) / device.bandwidth_bytes_per_s
    compute_s = kernel.flops / fastest_peak(kernel.dtype, device)
    share = 1.0 if isinstance(kernel.shape, ExpertsShape) else bandwidth_share
    likely_s, least_s = max(read_s / share, compute_s), max(read_s, compute_s)
    if time.seconds >= likely_s and time.band.low >= least_s:
        return time
    band = time.band.expected_at_least(likely_s).at_least(least_s)
    origin = time.origin if band.expected == time.band.expected else TimeOrigin.ROOFLINE
    return replace(time, band=band, origin=origin)


def by_bytes(kernel: Kernel, device: Device) -> KernelTime:
    """A vector kernel of an engine: a floor, and the bytes that it needs."""
    seconds = seconds_by_bytes(kernel.bytes_moved - kernel.avoidable_bytes, device)
    fast, slow = UNKNOWN_SPREAD
    return KernelTime(TimeOrigin.ROOFLINE, Band(seconds * fast, seconds * slow, seconds))


def _behind_another(kernel: KernelTime) -> Band:
    """A captured kernel starts a short gap after the end of the kernel before it."""
    gap_s = LAUNCH_GAP_S * kernel.launches
    return kernel.band + Band(gap_s, gap_s, gap_s)


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
