"""What a timed run saw: raw samples off the clock in nanoseconds, nothing averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PREPROCESS, SAMPLING, DECODE = "preprocess", "sampling", "decode"
STAGES_OUTSIDE_THE_MODEL = (PREPROCESS, SAMPLING)
"""Stages of a run that are no module's work, so that no trace of the model has a cost for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPass:
    """One pass over one page. `stages_ns` holds the own time of a stage, without stages inside it, each time it ran."""

    wall_ns: int
    stages_ns: Mapping[str, tuple[int, ...]]

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

    `workload` is what an adapter takes for the same run. `input_shapes` are those of the tensors that the first phase
    begins with: pages alike in them and in the decode steps are the same work. `peak_process_bytes` is the largest
    resident memory while the page was measured; `peak_device_bytes` is the allocator's on CUDA and None elsewhere.
    """

    image: str | None  # None: the workload has no image
    workload: Mapping[str, Any]
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
