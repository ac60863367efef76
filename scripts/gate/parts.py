"""Parts of a gate, each a command with a log of its own, two at a time; and how long each took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CORES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A command of the gate. `seconds` is about how long it takes: the longest begin first."""

    name: str
    command: Sequence[str]
    seconds: float
    shows_output: bool = False  # also when it passed: what it left out, what it counted


@dataclass(slots=True, kw_only=True)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    began: float

    @property
    def has_failed(self) -> bool:
        """Of one that has ended."""
        return self.process.returncode != 0


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds by part, and the parts that failed."""

    took: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def run_parts(
    parts: Sequence[Part], logs: Path, environment: Mapping[str, str], *, stops_at_failure: bool = True
) -> Times:
    """A part that fails shows its log; it ends the others and the gate, unless the gate is to say all that it finds."""
    logs.mkdir(parents=True, exist_ok=True)
    waiting = sorted(parts, key=lambda part: -part.seconds)
    running: list[_Running] = []
    times = Times()
    try:
        while waiting or running:
            while waiting and len(running) < CORES:
                running.append(_start(waiting.pop(0), logs, environment))
            time.sleep(0.05)
            for ended in [ended for ended in running if ended.process.poll() is not None]:
                running.remove(ended)
                times.took[ended.part.name] = time.monotonic() - ended.began
                _tell(ended, times.took[ended.part.name], logs)
                if ended.has_failed:
                    times.failed.append(ended.part.name)
                    if stops_at_failure:
                        sys.exit(1)
    finally:
        for ended in running:
            with suppress(ProcessLookupError):  # it has ended since
                os.killpg(ended.process.pid, signal.SIGTERM)
    return times


def _start(part: Part, logs: Path, environment: Mapping[str, str]) -> _Running:
    with _log(part, logs).open("wb") as log:
        process = subprocess.Popen(
            part.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # so that a part that is stopped takes along what it started
        )
    return _Running(part=part, process=process, began=time.monotonic())


def _log(part: Part, logs: Path) -> Path:
    return logs / f"{part.name.replace(' ', '-')}.log"


def _tell(ended: _Running, seconds: float, logs: Path) -> None:
    print(f"== {ended.part.name}: {'FAILED after ' if ended.has_failed else ''}{seconds:.0f} s", flush=True)
    if ended.has_failed or ended.part.shows_output:
        sys.stdout.write(_log(ended.part, logs).read_text("utf-8", "replace"))
        sys.stdout.flush()


def table_of(took: Mapping[str, float]) -> list[str]:
    """One line for each part, slowest first."""
    slowest_first = sorted(took.items(), key=lambda pair: -pair[1])
    return [f"{seconds:7.0f} s  {name}" for name, seconds in slowest_first]


def keep(took: Mapping[str, float], file: Path) -> None:
    file.write_text(json.dumps(dict(took), indent=1), "utf-8")
