"""How long each stage of a trace would take on a device: a bound, and a band of what is likely.

Nothing beats the bound of a data sheet's figures; one of measured rates is as good as the measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llm_perf_opt.analyses.necessary import NecessaryWork
from llm_perf_opt.analyses.prediction.band import NOTHING, Band
from llm_perf_opt.analyses.prediction.fusion import fused_kernels
from llm_perf_opt.analyses.prediction.kernel_time import kernel_time
from llm_perf_opt.analyses.prediction.kernels import Kernel
from llm_perf_opt.analyses.prediction.works import StageWork, stage_works
from llm_perf_opt.analyses.roofline.bound import Bound, SpeedOfLight, speed_of_light
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.priors import EfficiencyPriors, efficiency_priors


class Execution(StrEnum):
    """Who launches the kernels."""

    EAGER = "eager"  # PyTorch, op by op, from the host
    FUSED = "fused"  # an engine with grouped experts, fused vector ops and captured graphs: the host costs nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One stage on one device.

    `light` is the lower bound: necessary work at the device's full rates, with as many experts as the routing policy
    touches; `fewest` the same with the fewest that any routing can touch. None: what is necessary is not known.
    `device_time` is how long kernels keep the device busy, `host_time` how long the host takes to launch them, `wall`
    the slower of the two. No time lies below `light`.
    """

    work: StageWork
    light: SpeedOfLight | None
    fewest: SpeedOfLight | None
    launches: int  # after fusion, where the execution fuses
    device_time: Band
    host_time: Band
    bound_by: Bound

    @property
    def name(self) -> str:
        """The stage."""
        return self.work.name

    @property
    def bound_s(self) -> float | None:
        """The lower bound in seconds; None: not known."""
        return None if self.light is None else self.light.seconds

    @property
    def wall(self) -> Band:
        """From the first launch to the last result."""
        return self.device_time.slower(self.host_time)


def predict_stages(
    graph: CallGraph, device: Device, execution: Execution = Execution.EAGER, priors: EfficiencyPriors | None = None
) -> tuple[StagePrediction, ...]:
    """Every stage of one phase that launches anything."""
    bands = priors or efficiency_priors()
    fused = fused_kernels(graph) if execution is Execution.FUSED else {}
    return tuple(
        predict_work(work, fused.get(work.name, work.kernels), device, execution, bands)
        for work in stage_works(graph)
        if work.launches
    )


def predict_work(
    work: StageWork, kernels: Mapping[Kernel, int], device: Device, execution: Execution, priors: EfficiencyPriors
) -> StagePrediction:
    """One piece of work, done by `kernels`: its own, or those that are left of them after fusion."""
    light, fewest = bounds_of(work.necessary, device)
    busy, shares = _device_time(kernels, device, priors)
    if light is not None:
        streaming_s = light.bandwidth_s / max(priors.weight_bandwidth.high, priors.vector_bandwidth.high)
        busy = busy.at_least(max(light.seconds, streaming_s))
    launches = sum(kernels.values())
    host = NOTHING if execution is Execution.FUSED else launch_band(device, priors).times(launches)
    return StagePrediction(
        work=work,
        light=light,
        fewest=fewest,
        launches=launches,
        device_time=busy,
        host_time=host,
        bound_by=Bound.LAUNCHES if host.middle > busy.middle else max(shares, key=lambda bound: shares[bound]),
    )


def bounds_of(necessary: NecessaryWork | None, device: Device) -> tuple[SpeedOfLight | None, SpeedOfLight | None]:
    """The lower bound of necessary work, and the one with the fewest experts that any routing can touch."""
    if necessary is None:
        return None, None
    light, fewest = (
        speed_of_light(necessary.flops_by_dtype, must_read or 0, device, forwards=necessary.forwards)
        for must_read in (necessary.bytes, necessary.fewest_bytes)
    )
    return light, fewest


def _device_time(
    kernels: Mapping[Kernel, int], device: Device, priors: EfficiencyPriors
) -> tuple[Band, dict[Bound, float]]:
    """The sum over all kernels, and how much of its high edge each cause takes."""
    total = NOTHING
    shares = dict.fromkeys(Bound, 0.0)
    for kernel, count in kernels.items():
        time = kernel_time(kernel, device, priors)
        total += time.band.times(count)
        shares[time.bound_by] += time.band.high * count
    return total, shares


def launch_band(device: Device, priors: EfficiencyPriors) -> Band:
    """What the host spends on one launch: from the fastest to the slowest try of the device's own figure, or the prior.

    A figure without those ends is what a launch costs at least, and the prior tells how much more it may be.
    """
    prior = Band(priors.eager_launch_us.low * 1e-6, priors.eager_launch_us.high * 1e-6)
    usual, fastest, slowest = (
        None if figure is None else figure * 1e-9
        for figure in (device.launch_overhead_ns, device.launch_overhead_fastest_ns, device.launch_overhead_slowest_ns)
    )
    if usual is None:
        return prior
    return Band(usual if fastest is None else fastest, max(usual, prior.high) if slowest is None else slowest)


def total_wall(predictions: Sequence[StagePrediction]) -> Band:
    """The stages one after the other."""
    total = NOTHING
    for prediction in predictions:
        total += prediction.wall
    return total
