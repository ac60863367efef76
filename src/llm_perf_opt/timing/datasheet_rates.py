"""Rates from a data sheet: the fractions of peak and bandwidth that kernels reach, as bands found by several sources.

A kernel keeps a device busy for a fixed cost, and then for its FLOPs or its bytes, whichever takes longer. Compared
with measured kernel tables, `floor + max(FLOPs / rate, bytes / bandwidth)` follows matmuls from one row to 8,192
within about a fifth on the devices that do not run small matmuls from their caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.device import PEAKS_OF_DTYPE
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.hardware.priors import EfficiencyPriors, Prior, applying, efficiency_priors
from llm_perf_opt.core.report import Note
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.collective_time import band_of, kernel_on_links
from llm_perf_opt.timing.engine_kernels import fused_kernels
from llm_perf_opt.timing.lower_bound import BoundBy, LowerBound, fastest_peak, is_known
from llm_perf_opt.timing.rates import NOTHING, Band, Piece, RateTime, StagePieces, TimesPieces
from llm_perf_opt.timing.stage_work import StageWork

SOURCE = "data sheet"
LINKS = "links"
SMALL_WEIGHTS = 4_000_000  # up to here a matmul is priced as the sources' small ones
LARGE_WEIGHTS = 60_000_000  # and from here as their large ones; between, the band spans both
_MICRO = 1e-6
_SIXTEEN_BITS = ("bf16", "fp16")
_NARROW = frozenset({"float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int8"})


class Execution(StrEnum):
    """Who launches the kernels."""

    EAGER = "eager"  # PyTorch, op by op, from the host
    FUSED = "fused"  # an engine with grouped experts, fused vector ops and captured graphs: the host costs nothing

    @property
    def text(self) -> str:
        """For the first lines of a report."""
        return "eager PyTorch" if self is Execution.EAGER else "engine kernels (fused, CUDA graphs)"


_EXECUTIONS = {
    Execution.EAGER: "Eager PyTorch: the host launches every op of the trace, one after the other.",
    Execution.FUSED: "Engine kernels: grouped experts, fused vector ops, captured CUDA graphs, no scheduler.",
}


@dataclass(frozen=True, slots=True)
class DataSheetRates(TimesPieces):
    """The rates of a device that need not be there: its data sheet, and what fraction of it others have reached."""

    device: Device
    execution: Execution = Execution.EAGER
    priors: EfficiencyPriors = field(default_factory=efficiency_priors)
    cluster: Cluster | None = None  # of these devices, where the ranks of a plan run on several

    @property
    def name(self) -> str:
        """The origin of its times."""
        return SOURCE

    @property
    def title(self) -> str:
        """The device, and how many of them."""
        count = 1 if self.cluster is None else self.cluster.count
        return self.device.name if count == 1 else f"{count} x {self.device.name}"

    @property
    def is_engine(self) -> bool:
        """Whether a serving engine runs the kernels."""
        return self.execution is Execution.FUSED

    def notes(self) -> Iterator[Note]:
        """Who launches the kernels."""
        yield Note(_EXECUTIONS[self.execution])

    def pieces(self, graph: CallGraph, works: Sequence[StageWork]) -> Mapping[str, StagePieces]:
        """The kernels of each stage, as written or as an engine that fuses little."""
        fused = fused_kernels(graph, least=True) if self.execution is Execution.FUSED else {}
        return {work.name: StagePieces(pieces=tuple(fused.get(work.name, work.kernels).items())) for work in works}

    def duration(self, piece: Piece) -> tuple[RateTime, ...] | None:
        """The device time of one launch; nothing but kernels is described."""
        if not isinstance(piece, Kernel):
            return None
        if piece.kind is KernelKind.COMMUNICATION:
            return _on_links(piece, self.cluster, by_engine=self.is_engine)
        return (kernel_time(piece, self.device, self.priors),)

    def launch_time(self) -> Band:
        """Captured graphs cost the host nothing."""
        return NOTHING if self.execution is Execution.FUSED else launch_band(self.device, self.priors)

    def least_s(self, lower_bound: LowerBound) -> float:
        """Bytes at the best share of the bandwidth that any source found."""
        return max(lower_bound.seconds, lower_bound.bandwidth_s / self.best_bandwidth_share)

    def likely_s(self, lower_bound: LowerBound) -> float:
        """The same."""
        return self.least_s(lower_bound)

    @property
    def best_bandwidth_share(self) -> float:
        """The largest share of the bandwidth that any source found."""
        return max(self.priors.weight_bandwidth.high, self.priors.vector_bandwidth.high)


@dataclass(frozen=True, slots=True)
class RatesAbove(TimesPieces):
    """What sources share that know more than a data sheet of some kernels, and fall back on it for the others."""

    below: DataSheetRates

    @property
    def title(self) -> str:
        """The device, and how many of them."""
        return self.below.title

    @property
    def device(self) -> Device:
        """The device with the data sheet that bounds every time."""
        return self.below.device

    @property
    def cluster(self) -> Cluster | None:
        """The devices and links among which the ranks of a plan run."""
        return self.below.cluster

    @property
    def execution(self) -> Execution:
        """Who launches the kernels."""
        return self.below.execution

    @property
    def is_engine(self) -> bool:
        """Whether a serving engine runs the kernels."""
        return self.below.is_engine

    def launch_time(self) -> Band:
        """Of the host, as by the data sheet."""
        return self.below.launch_time().expected_in_the_middle()

    def least_s(self, lower_bound: LowerBound) -> float:
        """Nothing is faster than the bound; what was measured needs no further one."""
        return lower_bound.seconds

    def likely_s(self, lower_bound: LowerBound) -> float:
        """The same."""
        return self.least_s(lower_bound)


def _on_links(kernel: Kernel, cluster: Cluster | None, *, by_engine: bool) -> tuple[RateTime, ...] | None:
    band = band_of(kernel_on_links(kernel, cluster, by_engine=by_engine))
    if band is None or kernel.collective is None:
        return None
    rate = str(kernel.collective.kind)
    return (RateTime(source=LINKS, rate=rate, band=band, bound_by=BoundBy.COMMUNICATION),)


def kernel_time(kernel: Kernel, device: Device, priors: EfficiencyPriors) -> RateTime:
    """The device time of one launch, without the host's part.

    The low estimate finds bytes in the device's cache if they fit, the high one reads every byte from memory.
    """
    floor, fraction, bandwidth = priors_of(kernel, priors)
    compute = _compute_band(kernel, fraction, device)
    needed = max(0, kernel.bytes_moved - kernel.avoidable_bytes - (device.cache_bytes or 0))
    traffic = Band(
        needed / (device.bandwidth_bytes_per_s * bandwidth.high),
        kernel.bytes_moved / (device.bandwidth_bytes_per_s * bandwidth.low),
    )
    fixed = Band(floor.low * _MICRO, floor.high * _MICRO)
    return RateTime(
        source=SOURCE,
        rate=str(kernel.kind),
        band=fixed + compute.slower(traffic),
        bound_by=_largest(compute, traffic, fixed),
    )


def _largest(compute: Band, traffic: Band, fixed: Band) -> BoundBy:
    """By the high estimates: the low estimate of traffic is nothing where a cache may hold it."""
    high = {BoundBy.COMPUTE: compute.high, BoundBy.BANDWIDTH: traffic.high, BoundBy.LAUNCHES: fixed.high}
    return max(high, key=lambda bound: high[bound])


def _compute_band(kernel: Kernel, fraction: Prior, device: Device) -> Band:
    if not kernel.flops:
        return Band(0.0, 0.0)
    required = kernel.flops - kernel.skippable_flops
    fast, slow = compute_rates(kernel.dtype, fraction, device)
    return Band(required / fast, required / slow)


def compute_rates(dtype: str, fraction: Prior, device: Device) -> tuple[float, float]:
    """FLOP/s at the low and at the high estimate."""
    best = fastest_peak(dtype, device)
    usual = _usual_peak(dtype, device, best)
    ceiling = _ceiling(dtype, fraction.high, device)
    return best * ceiling, usual * min(fraction.low, ceiling)


def _usual_peak(dtype: str, device: Device, best: int) -> int:
    """The device's own rate; 8 and 4 bits that it has no engines for are multiplied as 16 bits."""
    if is_known(dtype, device):
        return device.peak(dtype)
    wide = [device.peak(name) for name in ("bfloat16", "float16") if is_known(name, device)]
    return max(wide) if wide and dtype in _NARROW else best


def _ceiling(dtype: str, fraction: float, device: Device) -> float:
    """Nothing exceeds the best matmul measured on this very device, where that is known.

    What was measured in one 16-bit type holds for the other: they share their matrix engines.
    """
    names = _SIXTEEN_BITS if dtype in ("bfloat16", "float16") else PEAKS_OF_DTYPE.get(dtype, (dtype,))
    for name in names:
        if name in device.achieved_flops_per_s:
            return min(fraction, device.achieved_flops_per_s[name] / device.peak_flops_per_s[name])
    return fraction


def priors_of(kernel: Kernel, priors: EfficiencyPriors) -> tuple[Prior, Prior, Prior]:
    """Floor in microseconds, share of the peak, share of the bandwidth."""
    if kernel.kind is KernelKind.ATTENTION:
        bandwidth = (
            applying(priors.attention_bandwidth, kernel.sequences) if kernel.queries == 1 else priors.vector_bandwidth
        )
        return priors.attention_floor_us, priors.attention_fraction, bandwidth
    if kernel.kind is KernelKind.MATMUL:
        return priors.matmul_floor_us, _matmul_fraction(kernel, priors), priors.weight_bandwidth
    return priors.vector_floor_us, priors.attention_fraction, priors.vector_bandwidth


def _matmul_fraction(kernel: Kernel, priors: EfficiencyPriors) -> Prior:
    small = applying(priors.small_matmul_fraction, kernel.rows)
    large = applying(priors.large_matmul_fraction, kernel.rows)
    if kernel.weights <= SMALL_WEIGHTS:
        return small
    if kernel.weights >= LARGE_WEIGHTS:
        return large
    return Prior(
        low=min(small.low, large.low), high=max(small.high, large.high), source=f"{small.source}; {large.source}"
    )


def launch_band(device: Device, priors: EfficiencyPriors) -> Band:
    """What the host spends on one launch: from the fastest to the slowest try of the device's own figure, or the prior.

    A figure without those ends is what a launch costs at least, and the prior gives how much more it may be.
    """
    prior = Band(priors.eager_launch_us.low * 1e-6, priors.eager_launch_us.high * 1e-6)
    usual, fastest, slowest = (
        None if figure is None else figure * 1e-9
        for figure in (device.launch_overhead_ns, device.launch_overhead_fastest_ns, device.launch_overhead_slowest_ns)
    )
    if usual is None:
        return prior
    return Band(usual if fastest is None else fastest, max(usual, prior.high) if slowest is None else slowest)
