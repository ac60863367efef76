"""How long a small piece of work takes: warmed up, repeated, and with caches that other work has used in between.

In a model short ops come in groups of a few, after others that have streamed weights through the caches: the code on
the way to a kernel, and the operands, come from farther away than in a loop that does nothing else, and the first of a
group takes up to three times as long. So before every try of a short op the inner caches are swept, and two runs in a
row count half each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from llm_perf_opt.hardware.calibration import Timing

Work = Callable[[], object]

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

    def time(self, work: Work, *, sweep: bool = True) -> Timing:
        """Median and both ends of the time of one `work()`."""
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

    def _sample_ns(self, work: Work, calls: int = 1) -> int:
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
