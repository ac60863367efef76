"""The file of a recorded run: what the engine was told, what it decided, when each request had its tokens; replayed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.vllm_schedules.cases import FOLDER
from llm_perf_opt.core.output_files import plain_values, write_whole
from llm_perf_opt.core.reading import FileKind, read_json
from llm_perf_opt.serving.engine_process.jobs import ReplayJob, Scheduled, ScheduleJob
from llm_perf_opt.serving.engine_process.process import EngineProcess
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.requests import AnsweredRequests, Traffic

_KIND = FileKind(name="recorded schedule", fix="record it again: python -m benchmarks.vllm_schedules record")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSchedule:
    """One case on one version. `tokens` is for engines that speculate: see `ScheduleJob`."""

    case: str
    version: str
    settings: EngineSettings
    traffic: Traffic
    step_seconds: tuple[float, ...]
    tokens: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    steps: list[str]
    answered: AnsweredRequests

    def job(self) -> ScheduleJob:
        """The same requests with the same durations of steps, for a replay."""
        settings = replace(self.settings, model=str(FOLDER / self.settings.model))
        return ScheduleJob(
            replay=ReplayJob(settings=settings, traffic=self.traffic, step_seconds=self.step_seconds),
            tokens=self.tokens,
        )


def path_of(version: str, case: str, folder: Path = FOLDER) -> Path:
    """Where the run of a case on a version is kept."""
    return folder / version.partition("+")[0] / f"{case}.json"


def read(path: Path) -> RecordedSchedule:
    return read_json(path, RecordedSchedule, _KIND)


def write(recorded: RecordedSchedule, folder: Path = FOLDER) -> Path:
    """Keep a recorded run, over an older one of the same case and version."""
    path = path_of(recorded.version, recorded.case, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
        for key, value in plain_values(recorded).items()
    )
    write_whole(path, [("{\n" + ",\n".join(lines) + "\n}\n").encode()])
    return path


_COMPARED = FileKind(name="list of compared schedules", fix="python -m benchmarks.vllm_schedules check")
_TIMES = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """A whole run in few letters: all lines of its steps, and all times of its requests."""

    steps: int
    schedule: str
    times: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`first_difference` tells both lines of the first step that differs; None: all steps are alike."""

    case: str
    steps: int
    entries: int  # sequences, summed over steps
    preemptions: int
    first_difference: str | None
    largest_time_error_s: float
    replayed: Digests


def compare(recorded: RecordedSchedule, process: EngineProcess) -> Comparison:
    """Replay a recorded run and hold one against the other."""
    scheduled = process.ask("schedule", recorded.job(), Scheduled)
    counts = [[int(word) for word in line.split()[:4]] for line in recorded.steps]
    return Comparison(
        case=recorded.case,
        steps=len(recorded.steps),
        entries=sum(entries for entries, _, _, _ in counts),
        preemptions=sum(recorded.answered.preemptions),
        first_difference=_first_difference(recorded.steps, scheduled.steps),
        largest_time_error_s=_largest_error(recorded.answered, scheduled.replayed.requests),
        replayed=_digests(scheduled.steps, scheduled.replayed.requests),
    )


def digests(recorded: RecordedSchedule) -> Digests:
    """Of the real engine's run."""
    return _digests(recorded.steps, recorded.answered)


def _digests(steps: list[str], answered: AnsweredRequests) -> Digests:
    times = [[value.hex() for value in getattr(answered, name)] for name in _TIMES]
    return Digests(steps=len(steps), schedule=_digest(steps), times=_digest(times))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def compared_path(version: str, folder: Path = FOLDER) -> Path:
    """Where what replays with this version left is kept, so that it can be compared without the engine."""
    return folder / f"replayed-{version}.json"


def read_compared(version: str, folder: Path = FOLDER) -> dict[str, Digests]:
    """Case -> what its last replay was."""
    return read_json(compared_path(version, folder), dict[str, Digests], _COMPARED)


def write_compared(version: str, comparisons: list[Comparison], folder: Path = FOLDER) -> None:
    """Keep what these replays were, next to those of other cases."""
    kept = read_compared(version, folder) if compared_path(version, folder).exists() else {}
    found = {**kept, **{comparison.case: comparison.replayed for comparison in comparisons}}
    document = {case: plain_values(digests) for case, digests in found.items()}
    write_whole(compared_path(version, folder), [(json.dumps(document, indent=1, sort_keys=True) + "\n").encode()])


def _first_difference(recorded: list[str], replayed: list[str]) -> str | None:
    for at, (before, after) in enumerate(zip(recorded, replayed, strict=False)):
        if before != after:
            return f"step {at}: recorded {before!r}, replayed {after!r}"
    if len(recorded) != len(replayed):
        return f"recorded {len(recorded)} steps, replayed {len(replayed)}"
    return None


def _largest_error(recorded: AnsweredRequests, replayed: AnsweredRequests) -> float:
    """Over all times of all requests: arrival, first step, first token, last token."""
    pairs = (zip(getattr(recorded, name), getattr(replayed, name), strict=True) for name in _TIMES)
    return max(abs(before - after) for times in pairs for before, after in times)
