"""One writer per study: a lock of the system in a folder, a lease that is renewed where there is only object storage.

A lease is an object with a number. Whoever creates the next number holds the study: creating fails where it is there
already. The holder changes its object every few seconds. An object that has not changed for `DEAD_S` belongs to a dead
process; clocks of two machines are never compared.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import make_folder
from llm_perf_opt.core.run_lock import locked_folder, writer_name
from llm_perf_opt.sweeps.studies.parquet_store import StudyStore

log = logging.getLogger(__name__)

BEAT_S, DEAD_S = 5.0, 20.0
_FIX = "wait until it ends, choose another --out, or give this study another name"
_LEASE = re.compile(r"_lease-(\d{8})\.json")
_RELEASED = "released"


def new_run() -> str:
    """The identity of a run, which is part of the name of every file that it writes."""
    return uuid4().hex[:8]


@dataclass(slots=True)
class Lease:
    """A held lease; `require` before anything is written that another run would read."""

    store: StudyStore
    folder: str
    number: int
    run: str
    _beats: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def _path(self) -> str:
        return _lease_path(self.folder, self.number)

    def text(self, state: str = "") -> bytes:
        """What the object holds: it differs with each beat."""
        words = {"run": self.run, "writer": writer_name(), "state": state or str(self._beats)}
        return json.dumps(words).encode()

    def require(self) -> None:
        """Refuse to go on where another run has taken the study over, because this one was silent for too long."""
        if _newest(self.store, self.folder) != self.number:
            raise PerfOptError(
                "Another run has taken this study over.",
                why=f"this one could not renew its lease for {DEAD_S:g} s",
                fix="run the same command again: finished parts are kept",
            )

    def renew(self) -> None:
        """Until the run ends: change the object, so that others see that its holder lives."""
        while not self._ended.wait(BEAT_S):
            self._beats += 1
            with suppress(OSError):  # a network that fails for a moment; `require` decides
                self.store.filesystem.pipe_file(self._path, self.text())

    def release(self) -> None:
        """Let the next run begin at once."""
        self._ended.set()
        with suppress(OSError):
            if _newest(self.store, self.folder) == self.number:
                self.store.filesystem.pipe_file(self._path, self.text(_RELEASED))


@contextmanager
def one_writer(store: StudyStore, study: str, run: str) -> Iterator[Lease | None]:
    """Hold a study; refused with the reason while another run holds it. None: the system holds the lock."""
    folder = store.folder(study)
    if store.is_local and find_spec("fcntl") is not None:
        make_folder(Path(folder))
        with locked_folder(Path(folder), fix=_FIX):
            yield None
        return
    with store.reached():
        lease = _taken(store, folder, run)
    beating = threading.Thread(target=lease.renew, daemon=True)
    beating.start()
    try:
        yield lease
    finally:
        lease.release()
        beating.join(BEAT_S)


def _taken(store: StudyStore, folder: str, run: str) -> Lease:
    """The next number, once the one before it is released or dead."""
    store.filesystem.makedirs(folder, exist_ok=True)
    newest = _newest(store, folder)
    if newest:
        _wait_for_death(store, folder, newest)
    lease = Lease(store=store, folder=folder, number=newest + 1, run=run)
    try:
        store.filesystem.pipe_file(lease._path, lease.text(), mode="create")
    except FileExistsError as error:
        raise _held(folder, "it began a moment before") from error
    if store.filesystem.cat_file(lease._path) != lease.text():  # a storage that takes no notice of `create`
        raise _held(folder, "it began a moment before")
    for number in range(max(1, newest - 1), newest):  # two numbers are kept: the one that ends and the one that begins
        with suppress(OSError):
            store.filesystem.rm(_lease_path(folder, number))
    return lease


def _wait_for_death(store: StudyStore, folder: str, number: int) -> None:
    """Return when the holder is gone; refuse as soon as it shows that it lives."""
    first = _content(store, folder, number)
    end = time.monotonic() + DEAD_S
    is_logged = False
    while not first.endswith(f'"{_RELEASED}"}}'.encode()):
        if time.monotonic() > end:
            log.warning("The run that held %s has been silent for %g s: it is taken over.", folder, DEAD_S)
            return
        if not is_logged:
            log.warning("Another run holds %s: waiting up to %g s to see whether it still lives.", folder, DEAD_S)
            is_logged = True
        time.sleep(0.5)
        now = _content(store, folder, number)
        if now != first and not now.endswith(f'"{_RELEASED}"}}'.encode()):
            raise _held(folder, f"it renews its lease: {now.decode('utf-8', 'replace')[:200]}")
        if now != first:
            return


def _content(store: StudyStore, folder: str, number: int) -> bytes:
    """The content of a lease; nothing where it is gone."""
    store.filesystem.invalidate_cache()
    with suppress(FileNotFoundError):
        return bytes(store.filesystem.cat_file(_lease_path(folder, number)))
    return b""


def _newest(store: StudyStore, folder: str) -> int:
    names = [_LEASE.fullmatch(name) for name in store.names(folder)]
    return max((int(match[1]) for match in names if match is not None), default=0)


def _lease_path(folder: str, number: int) -> str:
    return f"{folder}/_lease-{number:08}.json"


def _held(folder: str, why: str) -> PerfOptError:
    return PerfOptError(f"Another run is writing to {folder}.", why=why, fix=_FIX)


T = TypeVar("T")
R = TypeVar("R")
Outcome = tuple[T, R | BaseException]


def worker_count(workers: int | None, task_memory_bytes: int, tasks: int) -> int:
    """What was asked for, or as many as the cores and the free memory allow; never more than tasks."""
    allowed = workers or min(_cores(), max(1, _free_memory_bytes() // task_memory_bytes))
    return max(1, min(allowed, tasks))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_memory_bytes() -> int:
    """Free memory of this machine, or 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 2**33


def run_local(
    work: Callable[[T], R], tasks: Sequence[T], *, workers: int | None, task_memory_bytes: int
) -> Iterator[Outcome[T, R]]:
    """Each task with its result or its error, as they finish. One worker: in this process, in order."""
    count = worker_count(workers, task_memory_bytes, len(tasks))
    if count == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    with ProcessPoolExecutor(max_workers=count, mp_context=context, initializer=_end_with_parent) as pool:
        of_future = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(of_future):
                error = future.exception()
                if error is not None and not future.cancelled() and _is_dead(error):
                    raise PerfOptError(
                        "A process of the study was killed.",
                        why="the system ended it, most often because memory ran out",
                        fix="run the same command again with fewer --workers: it goes on where it stopped",
                    ) from error
                yield of_future[future], future.result() if error is None else error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Without this, a worker would wait for tasks for ever after its study was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has one"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_dead(error: BaseException) -> bool:
    from concurrent.futures.process import BrokenProcessPool

    return isinstance(error, BrokenProcessPool)
