"""What was measured, by any tool: times of one run, and the workload and machine they belong to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plain_text import visible
from llm_perf_opt.core.reading import FileKind

MEASURED_FILE = FileKind(
    name="measurement",
    fix="give one line such as `ttft=0.5s tpot=20ms batch=16 input_tokens=2048`, the same as TOML, JSON or CSV, the "
    "JSON that vllm bench serve --save-result, genai-perf, AIPerf or guidellm writes, vLLM's /metrics or its log of "
    "iterations, a GPU recording, the JSON of llm-perf-opt join, or the folder of llm-perf-opt profile",
    max_bytes=2**28,
    max_elements=2**25,
    error=UsageError,
)
_LONGEST_S = 86_400.0
_MOST_TOKENS = 2**31
_MOST_SEQUENCES = 2**20
_LONGEST_NAME = 200


class Quantity(StrEnum):
    """Which time it is."""

    TTFT = "TTFT"  # of one request, from its arrival to its first token
    TPOT = "TPOT"  # of one request, between two tokens after the first, on average
    STAGE = "stage"  # one stage of a forward, by the name that a trace gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One time. `samples_s` are its repeats on the same work; a time that was written down alone has one.

    `is_device_time` is the time of the kernels, without what the host adds. `by_family` splits it by the kind of the
    kernels, as far as a recording says.
    """

    quantity: Quantity
    samples_s: tuple[float, ...]
    stage: str | None = None  # of Quantity.STAGE
    statistic: str = "as given"  # "median", "mean": what the file holds of many requests
    is_device_time: bool = False
    by_family: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        times = (*self.samples_s, *self.by_family.values())
        if not self.samples_s or not all(0 < seconds <= _LONGEST_S for seconds in times):
            raise ValueError("a measured time is above zero, and below a day")

    @property
    def seconds(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.samples_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run at one load, with what its file says of it. None is unknown: not recorded.

    `batch` sequences were run together from beginning to end; `concurrency` requests were in flight at a server, each
    with its own prefill. Decode steps run with either. `workload` is what `profile` recorded, as an adapter takes it.
    """

    source: str  # the program that wrote it
    file: str
    times: tuple[Measurement, ...]
    model: str | None = None
    device: str | None = None
    batch: int | None = None
    concurrency: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_per_step: float = 1.0  # more than one with speculative decoding
    workload: Mapping[str, Any] | None = None
    phase: str | None = None  # that a GPU recording was joined with

    def __post_init__(self) -> None:
        sequences = (count for count in (self.batch, self.concurrency) if count is not None)
        tokens = (count for count in (self.input_tokens, self.output_tokens) if count is not None)
        if not all(1 <= count <= _MOST_SEQUENCES for count in sequences):
            raise ValueError(f"batch and concurrency are between 1 and {_MOST_SEQUENCES:,}")
        if not all(1 <= count <= _MOST_TOKENS for count in tokens):
            raise ValueError(f"lengths are between 1 and {_MOST_TOKENS:,} tokens")
        if not 1 <= self.tokens_per_step <= 1024:
            raise ValueError("a step gives between 1 and 1,024 tokens")

    def time_of(self, quantity: Quantity, stage: str | None = None) -> Measurement | None:
        """The time of that kind; None where it was not measured."""
        matching = (time for time in self.times if time.quantity is quantity and time.stage == stage)
        return next(matching, None)

    @property
    def sequences(self) -> int | None:
        """How many sequences a decode step has."""
        return self.concurrency if self.batch is None else self.batch

    @property
    def decode_context(self) -> int | None:
        """What a decode step finds in the cache on average, for each sequence."""
        return None if self.input_tokens is None else self.input_tokens + (self.output_tokens or 0) // 2


def run_of(times: Sequence[Measurement | None], kind: FileKind = MEASURED_FILE, **known: Any) -> MeasuredRun:
    """The run with these times, those that are None left out; refused where nothing is left, or a value cannot be."""
    known_times = tuple(time for time in times if time is not None)
    if not known_times:
        raise kind.refusal("holds no time", "neither a time to the first token (TTFT) nor one per output token (TPOT)")
    try:
        return MeasuredRun(times=known_times, **{name: _bounded(value) for name, value in known.items()})
    except ValueError as error:
        raise kind.refusal("holds a value that cannot be", str(error)) from None


def time_of(
    quantity: Quantity, seconds: float | None, statistic: str = "as given", kind: FileKind = MEASURED_FILE
) -> Measurement | None:
    """A time that one number gives; None where there is none, or where nothing was measured and the number is zero."""
    if not seconds:
        return None
    try:
        return Measurement(quantity=quantity, samples_s=(seconds,), statistic=statistic)
    except ValueError as error:
        raise kind.refusal(f"holds a {quantity} of {seconds:g} seconds", str(error)) from None


def _bounded(value: Any) -> Any:
    return visible(value[:_LONGEST_NAME]) if isinstance(value, str) else value
