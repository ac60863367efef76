"""How the command ends: every error becomes a message and an exit code.

0: fine. 1: something failed. 2: wrong usage. 3: a budget is broken. 130: Ctrl-C. 141: whoever read the output closed
it, as with `| head`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NoReturn

from llm_perf_opt.cli.progress import say
from llm_perf_opt.cli.terminal import message_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.work_limits import out_of_memory

CLOSED_PIPE = 141  # 128 + SIGPIPE, as shells have it
_LOADED_LATE = ("torch", "numpy", "PIL")  # dependencies that only some verbs import, and only when they run


@contextmanager
def exit_codes() -> Iterator[None]:
    """What a verb raises ends the process, after whatever is still to be written to stdout."""
    try:
        try:
            yield
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # which typer turns into exit code 1
                _leave_pipe()
            put("")
            raise
    except BrokenPipeError:
        _leave_pipe()
    except PerfOptError as error:
        _leave(error)
    except ModuleNotFoundError as error:
        if error.name not in _LOADED_LATE:
            raise
        _leave(_missing_module(error.name))
    except OSError as error:
        _leave(_from_the_system(error))
    except UnicodeEncodeError as error:
        _leave(_half_a_character(error))
    except MemoryError as error:
        reached = out_of_memory(error, "the command stopped here")
        assert reached is not None
        _leave(reached)


def put(text: str) -> None:
    """To stdout, at once: what cannot be written is an error of the command, not of Python's end."""
    try:
        if text:
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop(sys.stdout)
        raise PerfOptError(
            "Cannot write the result to stdout.",
            why=error.strerror or type(error).__name__,
            fix="make room where it is written to, or write it elsewhere",
        ) from error


def _leave(error: PerfOptError) -> NoReturn:
    say(f"error: {message_of(error)}")
    sys.exit(error.exit_code)


def _leave_pipe() -> NoReturn:
    """Quietly: the reader has what it wanted."""
    _drop(sys.stdout)
    sys.exit(CLOSED_PIPE)


def _drop(stream: IO[str]) -> None:
    """Python flushes its streams when it ends; what is still in this one goes nowhere."""
    with contextlib.suppress(OSError, ValueError):  # one that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _from_the_system(error: OSError) -> PerfOptError:
    """An error of the operating system that nobody put into words."""
    place = str(error.filename) if error.filename is not None else None
    is_too_long = error.errno == errno.ENAMETOOLONG
    return PerfOptError(
        "The operating system refused." if place is None else f"The operating system refused {place!r}.",
        why=error.strerror or f"{type(error).__name__}: {error}",
        fix="check the name" if is_too_long else "check the path, its permissions, and the room on the disk",
        exit_code=2 if is_too_long else 1,
    )


def _half_a_character(error: UnicodeEncodeError) -> PerfOptError:
    """A name that typer hands to the operating system before any verb sees it."""
    return PerfOptError(
        f"{error.object[:200]!r} cannot be written or found.",
        why=f"it holds half a character, {error.object[error.start : error.end]!r}",
        fix="check the name",
        exit_code=2,
    )


def _missing_module(name: str) -> PerfOptError:
    return PerfOptError(
        f"{name} is not installed.",
        why="running a model needs it; reading a trace does not",
        fix="llm-perf-opt doctor shows what is missing and the command that brings it",
    )
