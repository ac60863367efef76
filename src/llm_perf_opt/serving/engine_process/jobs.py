"""What crosses the border to an engine's process: a job, its answer, and a failure in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.reading import FileKind, read_bytes
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Replayed, Traffic
from llm_perf_opt.timing.step.step_table import StepTable

T = TypeVar("T")
_KIND = FileKind(name="message of an engine's process", fix="run the command again", max_bytes=2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """Requests for an engine with these settings. The time of its steps comes from a table, or step by step.

    `slower` multiplies the times of the table: the factor of a band. `acceptance` is the chance that a drafted token
    is right, where the settings ask for speculation. vLLM's own routing deals requests to `replicas` engines. Engines
    that share experts step together, and the table then gives the step of all of them. `host_tokens_per_s` is the link
    to host memory, where the settings keep blocks of the cache there.
    """

    settings: EngineSettings
    traffic: Traffic
    table: StepTable | None = None
    step_seconds: tuple[float, ...] = ()
    slower: float = 1.0
    acceptance: float | None = None
    replicas: int = 1
    shares_experts: bool = False
    has_jumps: bool = False  # steps between two events in one, by drafts that are all right: inside/jumps.py
    host_tokens_per_s: float | None = None
    keeps_batches: bool = False  # what each step computed comes with the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleJob:
    """A replay of which every decision is wanted, to be compared with an engine that ran.

    That engine may have had the runner of processors, and may have speculated: `tokens` then has for each step how
    many tokens each sequence got, and how many were drafted for it.
    """

    replay: ReplayJob
    has_gpu_runner: bool = False
    tokens: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Every step as a line: sequences, tokens, finished, preempted, and a digest of all that was decided."""

    steps: list[str]
    replayed: Replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One rank of a model under a workload of equal sequences. The call graphs go to `out`, one file per phase."""

    model: str  # a folder with config.json
    out: str
    device: SeenDevice
    plan: ParallelPlan = field(default_factory=ParallelPlan)  # with the rank that is traced
    batch: int = 1
    prompt_tokens: int = 512
    new_tokens: int = 1
    decode_steps: int = 1
    dtype: str = "auto"
    cache_dtype: str = "auto"
    routing: str = "uniform"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer:
    """The files of the phases, in order, and the CPU time that it took after vLLM was imported."""

    files: list[str]
    configure_s: float
    run_s: float
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job has no answer."""

    what: str
    why: str
    fix: str
    is_usage: bool = False

    def as_error(self) -> PerfOptError:
        """The failure as an error to raise."""
        return (UsageError if self.is_usage else PerfOptError)(self.what, why=self.why, fix=self.fix)


def write_message(path: Path, record: object) -> None:
    """A record as a file for the other side. MessagePack: a replay leaves millions of numbers."""
    import msgspec

    write_whole(path, [msgspec.msgpack.encode(record)])


def read_message(path: Path, record: type[T]) -> T:
    """The record in a file of the other side, typed and bounded."""
    import msgspec

    raw = read_bytes(path, _KIND)
    try:
        return msgspec.msgpack.decode(raw, type=record)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _KIND.refusal("is malformed", str(error)[:300]) from None
