"""The file of a recorded run: what the engine was told, what it decided, and when each request had its tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.vllm_schedules.cases import FOLDER
from llm_perf_opt.core.output_files import plain_values, write_whole
from llm_perf_opt.core.reading import FileKind, read_json
from llm_perf_opt.core.serving.engine_settings import EngineSettings
from llm_perf_opt.core.serving.requests import AnsweredRequests, Traffic
from llm_perf_opt.engines.vllm.jobs import ReplayJob, ScheduleJob

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


def path_of(version: str, case: str) -> Path:
    """Where the run of a case on a version is kept."""
    return FOLDER / version.partition("+")[0] / f"{case}.json"


def read(path: Path) -> RecordedSchedule:
    """A recorded run."""
    return read_json(path, RecordedSchedule, _KIND)


def write(recorded: RecordedSchedule) -> Path:
    """Keep a recorded run, over an older one of the same case and version."""
    import json

    path = path_of(recorded.version, recorded.case)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
        for key, value in plain_values(recorded).items()
    )
    write_whole(path, [("{\n" + ",\n".join(lines) + "\n}\n").encode()])
    return path
