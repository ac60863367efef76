"""Jobs in forked children, each under a cap of time and memory: one crash, hang or overrun costs one job.

A fork inherits the imported libraries, so a job starts in milliseconds instead of the seconds an import takes.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Record = dict[str, object]

WALL_FACTOR = 4  # a shared machine may give a job a quarter of a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits of one job: seconds of CPU time (four times as much on the clock), and bytes of private memory."""

    seconds: float
    memory_bytes: int


@dataclass(slots=True)
class _Child:
    name: str
    pid: int
    pipe: int
    started: float
    text: bytes = b""


def run_jobs(
    names: Sequence[str], job: Callable[[str], Record], caps: Caps, workers: int
) -> Iterator[tuple[str, Record]]:
    """Yield (name, record) as jobs end; a job that died has `status` "crash", "timeout" or "memory"."""
    waiting = list(reversed(names))
    running: list[_Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(), job, caps))
            for child in _ended(running, caps):
                running.remove(child)
                yield child.name, _record_of(child, caps)
    finally:
        for child in running:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _start(name: str, job: Callable[[str], Record], caps: Caps) -> _Child:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return _Child(name, pid, reader, time.monotonic())
    os.close(reader)
    os._exit(_child_main(name, job, caps, writer))


def _child_main(name: str, job: Callable[[str], Record], caps: Caps, writer: int) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(caps.seconds), math.ceil(caps.seconds) + 5))
    most = _data_bytes() + caps.memory_bytes  # what the parent holds is inherited, and is not this job's
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        record = job(name)
    except MemoryError:
        record = {"status": "memory", "message": f"more than {caps.memory_bytes / 2**30:.0f} GiB"}
    except Exception as error:  # noqa: BLE001 - the last frame of a child: whatever it was becomes its record
        record = {"status": "crash", "message": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    with os.fdopen(writer, "w") as pipe:
        json.dump(record, pipe)
    return 0


def _ended(running: Sequence[_Child], caps: Caps) -> list[_Child]:
    ready, _, _ = select.select([child.pipe for child in running], [], [], 0.5)
    done = []
    for child in running:
        if child.pipe in ready:
            if chunk := os.read(child.pipe, 1 << 16):
                child.text += chunk
            else:
                done.append(child)
        if time.monotonic() - child.started > WALL_FACTOR * caps.seconds and child not in done:
            os.kill(child.pid, signal.SIGKILL)
            done.append(child)
    return done


def _record_of(child: _Child, caps: Caps) -> Record:
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    if child.text and os.WIFEXITED(status):
        record: Record = json.loads(child.text)
        return record
    if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return {"status": "timeout", "message": f"more than {caps.seconds:.0f} s of CPU time"}
    return {"status": "crash", "message": f"the process ended by signal {os.WTERMSIG(status)}"}


def _data_bytes() -> int:
    """What this process has mapped for its data and stack."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    return pages * resource.getpagesize()


def resident_bytes() -> int:
    """Peak resident memory of this process, parent's share included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` whole, so that an interrupted sweep leaves the last complete file."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
