"""The command `llm-perf-opt`, which is also `python -m llm_perf_opt`.

Ctrl-C ends it with exit code 130 and one line, from here on: also while its own modules or torch are imported, and
while Python shuts down. Little is imported before the first signal can be handled.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as type checkers know it: `typing` is not imported before Ctrl-C is handled
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

EXIT_CODE = 130  # 128 + SIGINT, as shells have it
_IMPORTING = "<frozen importlib._bootstrap>"


class _Interrupt:
    """Whether Ctrl-C was pressed."""

    is_pressed = False
    is_last = False  # nothing is left that would have to be cleaned up


def main() -> None:
    """Run the command."""
    _have_streams()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for what a script starts in the background
        signal.signal(signal.SIGINT, _on_interrupt)
    sys.unraisablehook = _on_unraisable
    try:
        from llm_perf_opt.cli.app import main as run

        run()
    finally:
        if _Interrupt.is_pressed:
            _leave()
        _Interrupt.is_last = True


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise, so that temporary files and child processes end too; leave at once where raising would do harm.

    An import that is broken off fails in ways of its own, and a second Ctrl-C means at once.
    """
    is_second, _Interrupt.is_pressed = _Interrupt.is_pressed, True
    if is_second or _Interrupt.is_last or _is_importing(frame):
        _leave()
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _on_unraisable(error: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a finaliser, Ctrl-C too."""
    if error.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(error)


def _leave() -> NoReturn:
    """One line, no temporary files, and an end that runs no more Python."""
    scratch = sys.modules.get("llm_perf_opt.core.output_files")
    remove_own = getattr(scratch, "remove_own", None)  # None while the module itself is being imported
    if remove_own is not None:
        remove_own()
    try:
        os.write(2, b"Interrupted.\n")
    finally:
        os._exit(EXIT_CODE)


def _have_streams() -> None:
    """Where a stream is closed, a file opened later would take its place, and get what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


if __name__ == "__main__":
    main()
