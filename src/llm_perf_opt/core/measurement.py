"""What a timed run saw: raw samples off the clock in nanoseconds, nothing averaged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PREPROCESS, SAMPLING, DECODE = "preprocess", "sampling", "decode"
_LONGEST_NS, _MOST = 10**9 * 3600 * 24 * 366, 2**63
STAGES_OUTSIDE_THE_MODEL = (PREPROCESS, SAMPLING)
"""Stages of a run that are no module's work, so that no trace of the model has a cost for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPass:
    """One pass over one page. `stages_ns` holds the own time of a stage, without stages inside it, each time it ran."""

    wall_ns: int
    stages_ns: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        if any(not 0 <= time_ns < _LONGEST_NS for times in (self.stages_ns.values()) for time_ns in times):
            raise ValueError("times of stages that are not negative, of a run of less than a year")
        if not 0 <= self.wall_ns < _LONGEST_NS:
            raise ValueError("a wall time that is not negative, of a run of less than a year")

    def stage_ns(self, name: str) -> int:
        """All of a stage's own time in this pass."""
        return sum(self.stages_ns.get(name, ()))

    @property
    def unattributed_ns(self) -> int:
        """Wall time that is no stage's: the code between them."""
        return self.wall_ns - sum(map(self.stage_ns, self.stages_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMeasurement:
    """One page or prompt, measured `len(passes)` times. `cold` is the first pass of the process, if it was here.

    `workload` is what an adapter takes for the same run. `input_shapes` are the shapes of the tensors that the first
    phase begins with: pages alike in them and in the decode steps are the same work. `peak_process_bytes` is the
    largest resident memory while the page was measured; `peak_device_bytes` is the allocator's on CUDA, else None.
    """

    image: str | None  # None: the workload has no image
    workload: Mapping[str, object]
    context_tokens: int | None
    decode_steps: int
    cache_tokens: int | None
    token_ids: tuple[int, ...]
    text: str | None
    passes: tuple[TimedPass, ...]
    cold: TimedPass | None
    peak_process_bytes: int | None
    peak_device_bytes: int | None
    start_process_bytes: int | None = None  # resident before the page: the weights, mostly
    input_shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        sizes = (self.context_tokens, self.cache_tokens, self.peak_process_bytes, self.peak_device_bytes)
        shapes = itertools.chain.from_iterable(self.input_shapes)
        counts = (*sizes, self.start_process_bytes, self.decode_steps, *shapes)
        if any(count is not None and not 0 <= count < _MOST for count in counts):
            raise ValueError("counts of tokens and bytes that are not negative")
        if any(not -_MOST <= token < _MOST for token in self.token_ids):
            raise ValueError("tokens of at most 64 bits")

    @property
    def title(self) -> str:
        """The page by its image, for tables and messages."""
        return "one pass" if self.image is None else self.image

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """All calls of one operator in one stage, from a profiler's pass. `self_ns` leaves out the operators it calls.

    Where the profiler was asked for modules or stacks, the calls in one module or from one source line are a row each.
    """

    stage: str
    operator: str
    calls: int
    self_ns: int
    total_ns: int
    device_ns: int | None  # None: no device took part
    module: str | None = None  # path of the innermost module; None: not recorded, or outside every module
    source: str | None = None  # "sam.py:86 in forward"; None: not recorded
    self_allocated_bytes: int | None = None  # by all calls, without the operators they call; None: not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel:
    """One kernel as a profiler of the GPU saw it."""

    name: str
    stage: str | None  # None: launched outside every stage
    calls: int
    total_ns: int
    metrics: Mapping[str, float] = field(default_factory=dict)
