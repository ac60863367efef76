"""One model runs at a time in a process and one writer in a folder; a run that hangs is noticed.

A run replaces functions of torch and wraps forwards. Two at once could each be right only by luck.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from llm_perf_opt.core import interrupts
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible, InterruptsWait, puts_back
from llm_perf_opt.core.output_files import cannot_write
from llm_perf_opt.core.work_limits import LimitReached, WorkBudget

log = logging.getLogger(__name__)

_SAY_AFTER_S = 2.0
_POLL_S = 0.05  # how soon a thread that waits notices Ctrl-C
_LOCK = threading.RLock()  # the thread that runs a model may begin a run within it
if os.name == "posix":  # a forked child has only the thread that forked: nobody in it would release the lock
    os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class OneRun:
    """A run of model code, from before the first change to torch until after the last is undone.

    Interrupts wait within it, except where the model's own code runs (`core.interrupts.Interruptible`).
    """

    def __init__(self) -> None:
        self._open: ExitStack | None = None

    def __enter__(self) -> None:
        with ExitStack() as opening:
            opening.enter_context(InterruptsWait())
            _wait_for_turn(opening)
            self._open = opening.pop_all()

    @puts_back
    def __exit__(self, *error: object) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()


def _wait_for_turn(opening: ExitStack) -> None:
    """Take the lock, and leave its release to `opening`."""
    began = time.monotonic()
    is_said = False
    while not _LOCK.acquire(timeout=_POLL_S):
        with Interruptible():
            if not is_said and time.monotonic() - began > _SAY_AFTER_S:
                log.info("Waiting: another thread of this process runs a model ...")
                is_said = True
    opening.callback(_LOCK.release)


LOCK_FILE = ".lock"


def writer_name() -> str:
    """The process that runs this, as another machine can tell it from others."""
    return f"{os.getpid()} on {platform.node() or 'this machine'}"


@contextmanager
def locked_folder(folder: Path, *, fix: str) -> Iterator[None]:
    """Hold the lock of an existing folder; refused while another process, or another thread, has it."""
    import fcntl  # not everywhere: most verbs do without it

    try:
        opened = (folder / LOCK_FILE).open("a+b", buffering=0)
    except OSError as error:
        raise cannot_write(folder / LOCK_FILE, error) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            pid, on, host = lock.read(200).decode("utf-8", "replace").strip().partition(" on ")
            raise PerfOptError(
                f"Another run is writing to {folder}.",
                why=f"process {pid or 'unknown'} holds its lock{on}{host}",
                fix=fix,
            ) from error
        with suppress(OSError):  # a full disk: the lock holds, it only does not name its owner
            lock.truncate(0)
            lock.write(f"{writer_name()}\n".encode())
        yield


_WATCH_POLL_S = 0.2
DOING: dict[int, str] = {}  # thread -> the module that it called last
_OPEN: list[RunWatch] = []


def current_work() -> str | None:
    """What runs now, for a line of progress: the phase and the module; None where nothing is watched."""
    open_watches = _OPEN[-1:]  # one look: another thread may close it
    return open_watches[0].doing() if open_watches else None


class RunWatch:
    """While open, looks at time and memory several times a second. `what` is the phase, for the message.

    It stops the main thread as Ctrl-C does: within model code, never within a clean-up. A run in another thread is
    stopped at its next op alone.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._budget = WorkBudget()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._runner = threading.get_ident()

    def __enter__(self) -> RunWatch:
        DOING.pop(self._runner, None)
        _OPEN.append(self)
        if threading.current_thread() is threading.main_thread():
            self._thread = threading.Thread(target=self._watch, name="llm-perf-opt watch", daemon=True)
            self._thread.start()
        return self

    @interrupts.puts_back
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        if self in _OPEN:
            _OPEN.remove(self)
        if self._thread is not None:
            self._thread.join()
        interrupts.take_back_stop()
        is_limit = isinstance(error, LimitReached) or isinstance(error.__cause__ if error else None, LimitReached)
        if is_limit and isinstance(error, PerfOptError):
            error.add_reason(self._place())

    def doing(self) -> str:
        """The phase, and the module that was called last."""
        path = DOING.get(self._runner)
        return self._what if path is None else f"{self._what}, in module {path or '(root)'}"

    def _watch(self) -> None:
        is_stopped = False
        while not self._over.wait(_WATCH_POLL_S):
            reached = None if is_stopped else self._budget.exceeded()
            if reached is not None:
                is_stopped = True
                interrupts.stop_main_thread(reached)
            interrupts.remind_main_thread()

    def _place(self) -> str:
        path = DOING.get(self._runner)
        where = "before any module ran" if path is None else f"in module {path or '(root)'}"
        return f"stopped {where} of {self._what}, after {self._budget.spent_seconds:.1f} s"
