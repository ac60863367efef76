"""What a timed run is asked for, and what it saw: raw samples off the clock in nanoseconds, nothing averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STAGES_OUTSIDE_THE_MODEL = ("preprocess", "sampling")
"""Stages of a run that are no module's work, so that no trace of the model has a cost for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A model that is to run for real. Without a `folder` it is the blueprint, which needs no files."""

    folder: Path | None = None
    weights: str = "random"  # "random", or "stored": those in the folder
    device: str = "cpu"
    dtype: str = "bfloat16"
    attention: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRequest:
    """One page or prompt to run. `prompt` is text, the number of text tokens, or their ids."""

    image: str
    prompt: str | int | tuple[int, ...]
    max_new_tokens: int
    mode: str | None = None
    crops: tuple[int, int] | None = None
    stop_at_eos: bool = True


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

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TimedPass:
        """Back from `asdict`."""
        return cls(
            wall_ns=stored["wall_ns"],
            stages_ns={name: tuple(samples) for name, samples in stored["stages_ns"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMeasurement:
    """One page, measured `len(passes)` times. `cold` is the very first pass of the process, where this page was it.

    `workload` is what an adapter takes for the same run. `peak_process_bytes` is the largest resident memory while the
    page was measured; `peak_device_bytes` is the allocator's on CUDA and None elsewhere.
    """

    image: str
    workload: Mapping[str, Any]
    context_tokens: int
    decode_steps: int
    cache_tokens: int
    token_ids: tuple[int, ...]
    text: str | None
    passes: tuple[TimedPass, ...]
    cold: TimedPass | None
    peak_process_bytes: int | None
    peak_device_bytes: int | None
    start_process_bytes: int | None = None  # resident before the page: the weights, mostly

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> PageMeasurement:
        """Back from `to_json`."""
        return cls(
            **{
                **stored,
                "token_ids": tuple(stored["token_ids"]),
                "passes": tuple(map(TimedPass.from_json, stored["passes"])),
                "cold": None if stored["cold"] is None else TimedPass.from_json(stored["cold"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """All calls of one operator in one stage, from a profiler's pass. `self_ns` leaves out the operators it calls."""

    stage: str
    operator: str
    calls: int
    self_ns: int
    total_ns: int
    device_ns: int | None  # None: no device took part


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel as a profiler of the GPU saw it."""

    name: str
    stage: str | None  # None: launched outside every stage
    calls: int
    total_ns: int
    metrics: Mapping[str, float] = field(default_factory=dict)
