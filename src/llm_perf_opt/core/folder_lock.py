"""One writer for a folder: a lock of the operating system, which ends with the process that holds it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import cannot_write

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
        with suppress(OSError):  # a full disk: the lock holds, it only does not say whose it is
            lock.truncate(0)
            lock.write(f"{writer_name()}\n".encode())
        yield
