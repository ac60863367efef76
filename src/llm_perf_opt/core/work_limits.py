"""How much one run may take: ops, seconds and memory of this process. Whoever needs more raises a limit.

A configuration of a million layers or a forward without end would otherwise take the machine with it. What is sure to
exceed a limit is refused before the work; the rest is stopped at it, with what was being done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.options import OptionRecord, option
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.core.units import format_bytes, format_count, format_seconds

_GIB = 1 << 30
_SHARE_OF_MACHINE = 0.9
OPS_BETWEEN_CHECKS = 1024


class LimitReached(PerfOptError):
    """The run was stopped, or never begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLimits(OptionRecord):
    """The limits of each phase of a run."""

    taken_by: ClassVar[str] = "A limit of work"

    max_ops: int = option(5_000_000, at_least=1, help="Stop a phase after this many ops.")
    max_seconds: float = option(1800.0, at_least=0, help="Stop a phase after this many seconds.")
    max_memory: float | None = option(
        None,
        at_least=0,
        metavar="GIB",
        help="Stop when this process holds this much memory. Default: nine tenths of the machine.",
    )

    @property
    def max_memory_bytes(self) -> int | None:
        """None: the machine does not tell how much it has."""
        if self.max_memory is not None:
            return round(self.max_memory * _GIB)
        machine = machine_memory_bytes()
        return None if machine is None else round(machine * _SHARE_OF_MACHINE)


_CURRENT: ContextVar[WorkLimits] = ContextVar("work_limits")


def current_limits() -> WorkLimits:
    """The limits of this thread."""
    return _CURRENT.get(WorkLimits())


@contextmanager
def limits(**given: object) -> Iterator[WorkLimits]:
    """Other limits for what runs inside: `max_ops`, `max_seconds`, `max_memory` in GiB."""
    chosen = WorkLimits.make(**given)
    token = _CURRENT.set(chosen)
    try:
        yield chosen
    finally:
        _CURRENT.reset(token)


def refuse_ops(at_least: int, what: str) -> None:
    """Refuse what is sure to run more ops than the limit; `what` says where they come from."""
    allowed = current_limits().max_ops
    if at_least > allowed:
        raise LimitReached(
            f"{what} would run at least {format_count(at_least)} ops.",
            why=f"the limit is {format_count(allowed)}",
            fix=f"ask for less, or raise it: --max-ops {at_least * 2}",
        )


def refuse_memory(at_least_bytes: int, what: str) -> None:
    """Refuse what is sure to need more memory of this process than the limit."""
    allowed = current_limits().max_memory_bytes
    if allowed is not None and at_least_bytes > allowed:
        raise LimitReached(
            f"{what} would need at least {format_bytes(at_least_bytes)} of memory here.",
            why=f"the limit is {format_bytes(allowed)}",
            fix="ask for less, or raise it: --max-memory GIB",
        )


_OPS_PER_STEP = 10  # fewer than any decoder layer runs
_BYTES_PER_TOKEN = 24  # of an id, its mask and its position
_FEWEST_TOKENS = 32  # of a prompt where the model decides the length


def refuse_workload(*, batch: int, tokens: int, decode_steps: int, new_tokens: int = 1) -> None:
    """Refuse a workload of which the numbers alone say that it is too much."""
    refuse_decode_steps(decode_steps)
    refuse_memory(
        batch * max(tokens or _FEWEST_TOKENS, new_tokens) * _BYTES_PER_TOKEN,
        f"A batch of {format_count(batch)} such prompts",
    )


def refuse_decode_steps(steps: int) -> None:
    """Refuse more steps than anybody decodes, traced or evaluated."""
    refuse_ops((steps - 1) * _OPS_PER_STEP, f"{format_count(steps)} decode steps")


def refuse_depth(layers: int) -> None:
    """Refuse a model of which the number of layers alone says that it is too much."""
    refuse_ops(layers * _OPS_PER_STEP, f"A model of {format_count(layers)} layers")


class WorkBudget:
    """What is left of the limits of one phase."""

    def __init__(self) -> None:
        self._limits = current_limits()
        self._memory_bytes = self._limits.max_memory_bytes
        self._began = time.monotonic()
        self.max_ops = self._limits.max_ops

    @property
    def spent_seconds(self) -> float:
        """Since the phase began."""
        return time.monotonic() - self._began

    def exceeded(self, count: int | None = None, what: str = "ops") -> LimitReached | None:
        """The limit that is reached; `count` are the ops of the phase so far, None where nobody counts them.

        A tracer that sees no ops counts module calls instead, each of which runs one or more.
        """
        if count is not None and count > self.max_ops:
            return _reached(
                f"The phase ran {format_count(self.max_ops)} {what}",
                "that is the limit",
                f"--max-ops {self.max_ops * 10}",
            )
        seconds = self._limits.max_seconds
        if self.spent_seconds > seconds:
            return _reached(
                f"The phase ran for {format_seconds(seconds)}", "that is the limit", f"--max-seconds {seconds * 10:g}"
            )
        used_bytes = process_memory_bytes()
        if self._memory_bytes is not None and used_bytes is not None and used_bytes > self._memory_bytes:
            return _reached(
                f"This process holds {format_bytes(used_bytes)}",
                f"the limit is {format_bytes(self._memory_bytes)}",
                "--max-memory GIB",
            )
        return None


def _reached(what: str, why: str, option_text: str) -> LimitReached:
    return LimitReached(f"{what}.", why=why, fix=f"ask for less, or raise it: {option_text}")


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # torch's allocators


def out_of_memory(error: BaseException, what: str) -> LimitReached | None:
    """The error where `error` says that the machine has no memory left; None where it says something else."""
    text = error_line(error)
    if not isinstance(error, MemoryError) and not any(words in text.lower() for words in _NO_MEMORY):
        return None
    return LimitReached(
        f"There is no memory left: {what}.",
        why=text,
        fix="ask for less, or give this process more (ulimit -v, the limit of the container, another machine)",
    )


def process_memory_bytes() -> int | None:
    """What this process holds in memory now; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def machine_memory_bytes() -> int | None:
    """What the machine has, or the container that we run in, or what this process may have (`ulimit -v`)."""
    sizes = []
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    with suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(ImportError):  # not everywhere
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        sizes += [soft] if soft != resource.RLIM_INFINITY else []
    return min(sizes, default=None)
