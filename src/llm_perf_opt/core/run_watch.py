"""A watch over a run: it is stopped when its time or its memory is used up, also where no op is dispatched."""

from __future__ import annotations

import threading

from llm_perf_opt.core import interrupts
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.work_limits import LimitReached, WorkBudget

_POLL_S = 0.2
DOING: dict[int, str] = {}  # thread -> the module whose forward it entered last
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
        """The phase, and the module whose forward was entered last."""
        path = DOING.get(self._runner)
        return self._what if path is None else f"{self._what}, in module {path or '(root)'}"

    def _watch(self) -> None:
        is_stopped = False
        while not self._over.wait(_POLL_S):
            reached = None if is_stopped else self._budget.exceeded()
            if reached is not None:
                is_stopped = True
                interrupts.stop_main_thread(reached)
            interrupts.remind_main_thread()

    def _place(self) -> str:
        path = DOING.get(self._runner)
        where = "before any module ran" if path is None else f"in module {path or '(root)'}"
        return f"stopped {where} of {self._what}, after {self._budget.spent_seconds:.1f} s"
