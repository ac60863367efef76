"""A probe: one family of work, the sizes to try, and how long a small piece of it takes with cold caches.

In a model short ops come in groups of a few, after others that have streamed weights through the caches: the code on
the way to a kernel, and the operands, come from farther away than in a loop that does nothing else, and the first of a
group takes up to three times as long. So before every try of a short op the inner caches are swept, and two runs in a
row count half each.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from llm_perf_opt.core.hardware.calibration import RateTable, Timing

log = logging.getLogger(__name__)


TimedCall = Callable[[], object]

_NS_PER_S = 10**9
_SHORT_NS = 2_000_000  # sweeping changes nothing for what takes longer
_SWEPT_BYTES = 8 * 2**20


def sweep_buffer(device: str) -> torch.Tensor:
    """What is read to fill the inner caches with something else."""
    return torch.ones(_SWEPT_BYTES // 4, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopwatch:
    """Reads wall time, or the process's CPU time: on a busy machine that is the steadier one, with a single thread.

    Each piece of work is tried at least `fewest` times, then until `budget_ns` is spent or it was tried `most` times.
    """

    device: str = "cpu"
    clock: str = "wall"
    fewest: int = 5
    most: int = 15
    budget_ns: int = 25_000_000
    swept: torch.Tensor = field(default_factory=lambda: sweep_buffer("cpu"), repr=False, compare=False)

    def time(self, work: TimedCall, *, sweep: bool = True) -> Timing:
        """Median, fastest and slowest time of one `work()`."""
        work()
        is_short = self._sample_ns(work) < _SHORT_NS
        samples: list[float] = []
        while len(samples) < self.fewest or (len(samples) < self.most and sum(samples) < self.budget_ns):
            if sweep and is_short:
                self.swept.sum()  # reading only: what is written back later would slow the work down
                samples.append(self._sample_ns(work, calls=2) / 2)
            else:
                samples.append(self._sample_ns(work))
        samples.sort()
        return Timing(
            median_s=statistics.median(samples) / _NS_PER_S,
            fastest_s=samples[0] / _NS_PER_S,
            slowest_s=samples[-1] / _NS_PER_S,
        )

    def _sample_ns(self, work: TimedCall, calls: int = 1) -> int:
        read = time.perf_counter_ns if self.clock == "wall" else time.process_time_ns
        self._wait()
        started = read()
        for _ in range(calls):
            work()
        self._wait()
        return max(1, read() - started)

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)


_NOISE_VALUES = 1_048_583  # a prime, so that rows of a matrix do not repeat


def torch_dtype(name: str) -> torch.dtype:
    """`bfloat16` as torch knows it."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def noise(shape: tuple[int, ...], dtype: str, device: str) -> Tensor:
    """Normal values, repeated where many are wanted: drawing a billion of them would take longer than all probes."""
    values = torch.Size(shape).numel()
    few = torch.randn(min(values, _NOISE_VALUES), generator=torch.Generator().manual_seed(0)).to(torch_dtype(dtype))
    if values <= len(few):
        return few.view(shape).to(device)
    tensor = torch.empty(values, dtype=few.dtype, device=device)
    for start in range(0, values, len(few)):
        piece = tensor[start : start + len(few)]
        piece.copy_(few[: len(piece)])
    return tensor.view(shape)


Prepare = Callable[..., TimedCall]  # one keyword argument per axis -> the work to be timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """`prepare` makes the operands; what it returns is timed.

    Work grows in proportion to every axis, unless `growth` gives another power for it. `sweep` is whether the inner
    caches are swept before each try of short work.
    """

    family: str
    dtype: str
    axes: Mapping[str, tuple[int, ...]]
    prepare: Prepare
    growth: Mapping[str, int] = field(default_factory=dict)
    sweep: bool = True

    def coarse(self) -> Probe:
        """The same with the two smallest sizes of every axis: enough to see that it runs."""
        return replace(self, axes={axis: ticks[:2] for axis, ticks in self.axes.items()})


def measure(probe: Probe, stopwatch: Stopwatch) -> RateTable:
    """One time for every combination of sizes."""
    log.debug("Timing %s in %s.", probe.family, probe.dtype)
    times = []
    with torch.inference_mode():
        for sizes in itertools.product(*probe.axes.values()):
            work = probe.prepare(**dict(zip(probe.axes, sizes, strict=True)))
            times.append(stopwatch.time(work, sweep=probe.sweep))
            del work
    return RateTable(
        family=probe.family,
        dtype=probe.dtype,
        axes=tuple(probe.axes),
        ticks=tuple(probe.axes.values()),
        growth=tuple(probe.growth.get(axis, 1) for axis in probe.axes),
        times=tuple(times),
    )
