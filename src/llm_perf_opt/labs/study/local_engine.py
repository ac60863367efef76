"""Tasks in processes of this machine: the standard library's pool, as many workers as cores and memory allow."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from llm_perf_opt.core.errors import PerfOptError

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
    """Of this machine now; where the system does not say, its whole memory is not counted on."""
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
    """A worker whose study was killed would wait for tasks for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has one"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_dead(error: BaseException) -> bool:
    from concurrent.futures.process import BrokenProcessPool

    return isinstance(error, BrokenProcessPool)
