"""How long an optimizer step takes on one rank: kernels, collectives that nothing hides, bubbles and the optimizer.

The kernels of a micro batch are priced by the project's own rates: measured kernels where a table has the shape, the
data sheet otherwise. What a framework adds to them, such as gaps, imbalance and slower kernels next to collectives,
is one factor with a band, from the development sources of docs/evidence/training-records.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import Cluster
from llm_perf_opt.core.hardware.priors import Prior
from llm_perf_opt.ops.op import Kernel, KernelKind
from llm_perf_opt.timing.datasheet_rates import compute_rates
from llm_perf_opt.timing.kernel_rates import KernelTableRates
from llm_perf_opt.timing.lower_bound import fastest_peak
from llm_perf_opt.timing.rate_sources import source_of
from llm_perf_opt.timing.rates import NOTHING, Band, RateSource
from llm_perf_opt.training.model_flops import necessary_flops
from llm_perf_opt.training.model_shape import ModelShape
from llm_perf_opt.training.rank_memory import StageNumbers, held_bytes, stage_numbers
from llm_perf_opt.training.step_communication import StepCollective, step_collectives
from llm_perf_opt.training.step_kernels import COMPUTE, Kernels, Phase, micro_batch, vector_kernel
from llm_perf_opt.training.training_run import FULL, Shard, TrainingRun

# A backward of fused attention has five matmuls for the two of the forward, and reaches less of the peak.
_ATTENTION_BACKWARD = 2.9
# What frameworks add to the kernels of the development records. Matmuls that run for hours reach less than in a table
# on GPUs that lower their clock for power, from Hopper on.
_FRAMEWORK, _LOWERS_CLOCK = 1.2, 1.35
_BEFORE_HOPPER = ("volta", "turing", "ampere", "ada")
# PyTorch's own fused attention is FlashAttention-2 on Hopper and later too; tables have their own kernels.
_SECOND_FLASH = 1.5
_HOST_BYTES_PER_S = 12e9  # what one GPU of several reaches over PCIe 4.0 from pageable memory
# 10 % and 90 % of measured over expected times in the development records, dense models and mixtures of experts.
_DENSE_SPREAD, _EXPERTS_SPREAD = (0.8, 1.5), (0.75, 2.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollectiveTime:
    """Collectives of a step with the time they would take alone; None: not known."""

    collective: StepCollective
    alone: Band | None
    exposed: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStepTime:
    """Seconds of an optimizer step: `band` is the sum of `phases`."""

    band: Band
    phases: Mapping[Phase, Band]
    collectives: tuple[StepCollectiveTime, ...]
    unknown: tuple[str, ...]  # collectives without a time: they are in no figure

    @property
    def seconds(self) -> float:
        """What is expected."""
        return self.band.expected or self.band.middle


@dataclass(slots=True)
class StepClock:
    """Prices kernels and collectives on one cluster, each of them once."""

    rates: RateSource
    _known: dict[Kernel, Band | None] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: Cluster) -> StepClock:
        """The rates of the cluster's device: measured tables where they are installed."""
        return cls(source_of(cluster if cluster.count > 1 else cluster.device, "eager", None))

    @property
    def framework(self) -> float:
        """The factor on kernels for this device."""
        arch = "" if self.rates.device is None else self.rates.device.arch.lower()
        return _FRAMEWORK if any(name in arch for name in _BEFORE_HOPPER) else _LOWERS_CLOCK

    def least_s(self, flops: float, precision: str) -> float:
        """Seconds in which no GPU does this work: at the peak of the format of its matmuls."""
        device = self.rates.device
        return 0.0 if device is None else flops / fastest_peak(COMPUTE[precision], device)

    def learn(self, kernels: Iterable[Kernel]) -> None:
        """Ask tables for all shapes at once, which is far quicker."""
        if isinstance(self.rates, KernelTableRates):
            self.rates.learn(kernels)

    def each(self, kernel: Kernel) -> Band | None:
        """One launch; None: no rate describes it."""
        if kernel not in self._known:
            self._known[kernel] = self._priced(kernel)
        return self._known[kernel]

    def _priced(self, kernel: Kernel) -> Band | None:
        """By a table, else by the rates; nothing is faster than the peak, or than the best matmul of the device.

        Training runs fused attention of its own on each device: the table of the device is nearer to it than a
        recording of eager PyTorch on another.
        """
        rates = self.rates
        in_table = None
        if kernel.kind is KernelKind.ATTENTION and kernel.shape is not None and isinstance(rates, KernelTableRates):
            in_table = rates.measured(kernel)
        times = None if in_table is not None else rates.duration(kernel)
        band = in_table.band if in_table is not None else None if times is None else times[0].band
        if band is None:
            return None
        if band.expected is None:
            band = band.expected_in_the_middle()
        device, required = rates.device, kernel.flops - kernel.skippable_flops
        if device is None or not required:
            return band
        fast, _ = compute_rates(kernel.dtype, Prior(low=1.0, high=1.0, source="the peak"), device)
        return band.expected_at_least(required / fast).at_least(required / fast)

    def all(self, kernels: Kernels) -> Band:
        """One after the other."""
        self.learn(kernels)
        total = NOTHING
        for kernel, count in kernels.items():
            total += self.known(kernel).times(count)
        return total

    def known(self, kernel: Kernel) -> Band:
        """One launch of work that a step cannot do without: an unknown time would make the step look faster."""
        if (band := self.each(kernel)) is None:
            device = "this device" if self.rates.device is None else self.rates.device.id
            raise PerfOptError(
                f"No time is known for {kernel.kind} kernels in {kernel.dtype} on {device}.",
                why="its data sheet has neither their peak nor the bandwidth of the memory",
                fix="choose another --precision, or describe the device in a file with --devices",
            )
        return band


def step_time(shape: ModelShape, run: TrainingRun, clock: StepClock) -> TrainingStepTime:
    """The time of one optimizer step: every stage is as slow as the last, which has the head."""
    batch, micro = micro_batch(shape, run), run.micro_batches
    attention = clock.all(batch.attention)
    framework = clock.framework
    if not run.has_own_attention and framework == _LOWERS_CLOCK:
        attention = attention.times(_SECOND_FLASH)
    layers = clock.all(batch.forward) + attention
    backward = clock.all(batch.backward) + attention.times(_ATTENTION_BACKWARD)
    again = _again(layers, attention, run)
    head = clock.all(batch.head).times(1 / run.plan.pp)
    work = {
        Phase.FORWARD: layers.times(micro),
        Phase.RECOMPUTE: again.times(micro),
        Phase.BACKWARD: backward.times(micro),
        Phase.LOSS: head.times(micro),
    }
    work = {phase: band.times(framework) for phase, band in work.items()}
    busy = sum(work.values(), NOTHING)
    numbers = stage_numbers(shape, run, 0)
    collectives = tuple(_timed(shape, run, numbers, clock, busy, work[Phase.BACKWARD].times(1 / micro)))
    exposed = sum((timed.exposed for timed in collectives), NOTHING)
    launched = clock.rates.launch_time().times(batch.launches * micro)
    phases = {
        **work,
        Phase.COMMUNICATION: exposed,
        Phase.BUBBLE: (busy + exposed).times((run.plan.pp - 1) / (run.plan.chunks * micro)),
        Phase.HOST: _from_host(shape, run, numbers),
        Phase.OPTIMIZER: _optimizer(run, numbers, clock),
        Phase.LAUNCHES: _beyond(launched, busy + exposed),
    }
    fast, slow = _EXPERTS_SPREAD if shape.blocks.experts else _DENSE_SPREAD
    phases = {phase: _spread(band, fast, slow) for phase, band in phases.items()}
    least = clock.least_s(necessary_flops(shape, run) * run.step_tokens / run.plan.gpus, run.precision)
    return TrainingStepTime(
        band=sum(phases.values(), NOTHING).expected_at_least(least).at_least(least),
        phases=phases,
        collectives=collectives,
        unknown=tuple(timed.collective.what for timed in collectives if timed.alone is None),
    )


def _spread(band: Band, fast: float, slow: float) -> Band:
    """As far from what is expected as measured steps were."""
    expected = band.expected or 0.0
    return Band(expected * fast, expected * slow, expected)


def _again(layers: Band, attention: Band, run: TrainingRun) -> Band:
    """The forward that recomputation runs again; the selective kind leaves attention and matmuls out of it."""
    if run.recompute == "full":
        return layers
    return layers.times(0.1) if run.recompute == "selective" else NOTHING


def _beyond(launched: Band, busy: Band) -> Band:
    """How much longer the host needs than the device: launches run ahead of the device."""
    expected = launched.expected if launched.expected is not None else launched.middle
    low, middle, high = (
        max(0.0, one - other)
        for one, other in ((launched.low, busy.high), (expected, busy.expected or 0.0), (launched.high, busy.low))
    )
    return Band(low, max(low, high), min(max(middle, low), max(low, high)))


def _from_host(shape: ModelShape, run: TrainingRun, numbers: StageNumbers) -> Band:
    """Weights that are kept in the host's memory, copied for each forward and each backward; little of it is hidden."""
    if not run.offloads:
        return NOTHING
    copies = 2 * run.micro_batches
    seconds = held_bytes(shape, run, numbers) * copies / _HOST_BYTES_PER_S
    return Band(seconds, seconds, seconds)


def _optimizer(run: TrainingRun, numbers: StageNumbers, clock: StepClock) -> Band:
    """Weights, gradients and states read, weights and states written."""
    trained = numbers.own if run.method.kind == FULL else numbers.adapters
    shares = 1 if run.plan.shard is Shard.NOTHING else run.plan.shard_ranks
    dense, experts = trained - numbers.experts, numbers.experts
    if run.method.kind != FULL:
        dense, experts = trained, 0.0
    local = dense / shares + experts / (1 if shares == 1 else run.plan.expert_shard_ranks)
    each = 2 * run.states.weights + run.states.gradients + 2 * run.states.states
    return clock.known(vector_kernel(max(1.0, local * each))).times(1.5)


def _timed(
    shape: ModelShape, run: TrainingRun, numbers: StageNumbers, clock: StepClock, busy: Band, one_backward: Band
) -> Iterable[StepCollectiveTime]:
    """Each axis with what hides it: layers hide the gathering of the next, the last backward hides the gradients."""
    for collective in step_collectives(shape, run, numbers):
        kernel = Kernel(
            kind=KernelKind.COMMUNICATION,
            dtype="bfloat16",
            flops=0,
            skippable_flops=0,
            bytes_moved=collective.collective.payload_bytes,
            collective=collective.collective,
        )
        each = clock.each(kernel)
        alone = None if each is None else each.times(collective.count)
        hides = {"nothing": NOTHING, "layers": busy, "backward": one_backward}[collective.hidden_by]
        yield StepCollectiveTime(
            collective=collective, alone=alone, exposed=NOTHING if alone is None else _exposed(alone, hides, collective)
        )


def _exposed(alone: Band, hides: Band, collective: StepCollective) -> Band:
    """Expected: what is longer than the work that runs meanwhile, and the first of them, which nothing hides."""
    expected = max(0.0, (alone.expected or alone.middle) - (hides.expected or 0.0))
    first = (alone.expected or alone.middle) / max(1.0, collective.count)
    low = max(0.0, alone.low - (hides.high if hides.high else alone.low))
    high = (
        alone.high
        if not hides.high
        else max(0.0, alone.high - 0.5 * hides.low) + alone.high / max(1.0, collective.count)
    )
    middle = min(expected + (first if hides.high else 0.0), max(low, high))
    return Band(low, max(low, high), max(low, middle))
