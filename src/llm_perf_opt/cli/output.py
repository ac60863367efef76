"""What the command prints and how it ends: every error becomes a message and an exit code.

0: success. 1: something failed. 2: wrong usage. 3: a budget or an SLO is not met. 130: Ctrl-C. 141: the reader of the
output closed it, as with `| head`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NoReturn

import typer

from llm_perf_opt.cli.progress import message_of, say
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.plugins import REPORTERS

if TYPE_CHECKING:
    from llm_perf_opt.core.protocols import Reporter
    from llm_perf_opt.core.report import Report

CLOSED_PIPE = 141  # 128 + SIGPIPE, as shells have it
_LOADED_LATE = ("torch", "transformers", "numpy", "PIL")  # packages that only some verbs import, when they run


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
        from llm_perf_opt.core.work_limits import out_of_memory

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
            fix="free space on that disk, or write it elsewhere",
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
        fix="check the name" if is_too_long else "check the path, its permissions, and the free space on the disk",
        exit_code=2 if is_too_long else 1,
    )


def _half_a_character(error: UnicodeEncodeError) -> PerfOptError:
    """A name that typer hands to the operating system before any verb sees it."""
    return PerfOptError(
        f"{error.object[:200]!r} cannot be written or found.",
        why=f"it contains half a character, {error.object[error.start : error.end]!r}",
        fix="check the name",
        exit_code=2,
    )


def _missing_module(name: str) -> PerfOptError:
    from llm_perf_opt.core.missing_packages import RUNS_MODELS, cannot_run

    if name in RUNS_MODELS:
        return cannot_run(name)
    return PerfOptError(
        f"{name} is not installed.",
        why="llm-perf-opt depends on it",
        fix="run llm-perf-opt doctor: it shows what is missing and how to install it",
    )


ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
ForceFileOption = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
ReportFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File for the report; the suffix is the format.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if an op has no price or a difference has no cause.")
]
FormatOption = Annotated[str | None, typer.Option("--format", help=f"One of: {', '.join(REPORTERS.names())}.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Print every table, row and note. Default: the answer and one screen.")
]


def choose_reporter(format_name: str | None, json_wanted: bool, out: Path | None = None) -> Reporter:
    """The format by name or by the file's suffix; called before the work starts, so a wrong name costs nothing."""
    name = asked_format(format_name, json_wanted)
    if not name and out is not None:
        from llm_perf_opt.api.answer import report_format_of

        name = report_format_of(out)
    return REPORTERS.get(name or "text")()


def asked_format(format_name: str | None, json_wanted: bool) -> str | None:
    """The name behind --format or --json; None where neither is given."""
    if json_wanted and format_name not in (None, "json"):
        raise UsageError(
            f"--json and --format {format_name} contradict each other.",
            why="--json is short for --format json",
            fix="give one of the two",
        )
    return "json" if json_wanted else format_name


def reserve_page(out: Path | None, *, force: bool) -> None:
    """Refuse, before any work, a suffix that is no format and a file that is there already."""
    from llm_perf_opt.api.answer import report_format_of
    from llm_perf_opt.core.output_files import free_file

    if out is not None:
        report_format_of(out)
        free_file(out, force=force)


def model_prints_apart() -> AbstractContextManager[object]:
    """Some models print from their forward; that goes to stderr, since stdout is for the result."""
    return contextlib.redirect_stdout(sys.stderr)


def show(report: Report, reporter: Reporter, *, verbose: bool) -> None:
    """Print the result: the whole of it, or in a format for a terminal one screen."""
    from llm_perf_opt.core.protocols import FitsOneScreen

    if isinstance(reporter, FitsOneScreen) and not verbose:
        put(reporter.one_screen(report))
    else:
        put(reporter.render(report))
