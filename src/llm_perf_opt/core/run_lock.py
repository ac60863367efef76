"""One model runs at a time in a process: a second thread waits, and no trace sees what another one does.

A run replaces functions of torch and wraps forwards. Two at once could each be right only by luck.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack

from llm_perf_opt.core.interrupts import Interruptible, InterruptsWait, puts_back

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
