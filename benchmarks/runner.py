"""One way to run a benchmark: its options, jobs in forked children, a sweep that can be continued, and its record.

Each job has a cap of time and memory: one crash, hang or overrun costs one job. A fork inherits the imported libraries,
so a job starts in milliseconds instead of the seconds an import takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS, replace_section, write_atomically

Record = dict[str, Any]

WALL_FACTOR = 4  # a shared machine may give a job a quarter of a core


def parser(doc: str | None, **flags: str) -> argparse.ArgumentParser:
    """With the module's own words, and a flag for each of these with its help."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, said in flags.items():
        made.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=said)
    return made


def recorder(doc: str | None, threads: int = 2) -> argparse.ArgumentParser:
    """Of a benchmark that leaves a record: `--out` and `--threads`."""
    made = parser(doc)
    made.add_argument("--out", type=Path, help="where to write the record as JSON")
    made.add_argument("--threads", type=int, default=threads)
    return made


def leave(record: Mapping[str, Any], out: Path | None) -> None:
    """Print a record, and write it where that is wanted."""
    text = json.dumps(record, indent=2) + "\n"
    print(text, end="")
    if out is not None:
        write_atomically(out, text)


def in_turns(
    sides: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each side in each round. Rounds alternate, so that a machine that slows down slows all sides."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            spent[name].append(seconds_of(work, clock))
    return spent


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """With the garbage of others collected before; by default CPU time, which a busy machine does not change."""
    gc.collect()
    began = clock()
    work()
    return clock() - began


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
    names: Sequence[str], job: Callable[[str], Record], caps: Caps, workers: int = 1
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


def load_records(path: Path) -> dict[str, Record]:
    """Key -> record; empty when the file does not exist yet."""
    if not path.exists():
        return {}
    records: dict[str, Record] = json.loads(path.read_text(encoding="utf-8"))["records"]
    return records


def save_records(path: Path, header: Mapping[str, object], records: Mapping[str, Record]) -> None:
    """Write `header`, then the records sorted by key."""
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(records[key])}" for key in sorted(records))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{{{head}"records": {{\n{lines}\n}}}}\n')


def sweeper(doc: str | None, data: str, page: str, *, seconds: float, gib: int = 6) -> argparse.ArgumentParser:
    """Options of a sweep: its data file and page in docs, what to run, and the caps of a job."""
    made = parser(doc)
    made.add_argument("--out", type=Path, default=DOCS / "data" / f"{data}.json")
    made.add_argument("--page", type=Path, default=DOCS / page)
    made.add_argument("--only", nargs="*", metavar="NAME", help="run these, with wildcards, and print their records")
    made.add_argument("--redo", nargs="*", metavar="STATUS", default=(), help="repeat records of these, or all")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--seconds", type=float, default=seconds, help="CPU seconds of a job")
    made.add_argument("--gib", type=int, default=gib, help="memory of a job")
    return made


def quieten() -> dict[str, str]:
    """One thread, no network, no warnings of the libraries under test; their versions."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    return {"transformers": transformers.__version__, "torch": torch.__version__}


def in_short(record: Record) -> str:
    return f"{record['status']} {str(record.get('message', ''))[:200]}"


class Sweep:
    """Jobs whose records are kept in a file as they end, so that a sweep can be continued."""

    def __init__(self, options: argparse.Namespace, header: Mapping[str, object], every: int = 20) -> None:
        self.options, self.header, self.every = options, header, every  # records between two writes
        self.records = load_records(options.out)

    def run(
        self,
        names: Sequence[str],
        job: Callable[[str], Record],
        say: Callable[[Record], str] = in_short,
        side: str = "",
    ) -> None:
        """Of these what is wanted. `say` is told of each, if not empty; `side` ends the keys of the records."""
        wanted = [name for name in names if self._is_wanted(name, name + side)]
        for name, record in self.jobs(wanted, job, say):
            self.records[name + side] = record

    def jobs(
        self, names: Sequence[str], job: Callable[[str], Record], say: Callable[[Record], str]
    ) -> Iterator[tuple[str, Record]]:
        """Each as it ends, to be put into the records; tracebacks, which name paths of one machine, are left out."""
        caps = Caps(seconds=self.options.seconds, memory_bytes=self.options.gib << 30)
        for count, (name, record) in enumerate(run_jobs(names, job, caps, self.options.workers), 1):
            if self.options.only:
                print(json.dumps(record, indent=1))
            yield name, {key: value for key, value in record.items() if key != "traceback"}
            if text := say(record):
                print(f"{count}/{len(names)} {name}: {text}", file=sys.stderr, flush=True)
            if count % self.every == 0 or count == len(names):
                save_records(self.options.out, self.header, self.records)

    def _is_wanted(self, name: str, key: str) -> bool:
        if self.options.only:
            return any(fnmatchcase(name, pattern) for pattern in self.options.only)
        return key not in self.records or bool({self.records[key]["status"], "all"} & set(self.options.redo))

    def put(self, section: str, text: str) -> None:
        """Put the section into the page, and say so."""
        replace_section(self.options.page, section, text)
        print(f"Wrote {self.options.out} and refreshed {self.options.page}")
