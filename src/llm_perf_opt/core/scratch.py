"""Temporary files and folders, named after the process that made them: the next run removes those of dead ones.

A name holds the machine, the process id and a mark of when that process began: an id alone is given out again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from llm_perf_opt.core.errors import PerfOptError

PREFIX = ".llm-perf-opt-"
SUFFIX = ".partial"
_NAME = re.compile(r"\.llm-perf-opt-(?P<machine>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<start>[0-9a-f]{8})-\d+\.partial")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")  # containers of one host may share its name, and count processes by themselves
_UNKNOWN_START = "0" * 8  # where the system does not say when a process began
_FOREIGN_AGE_S = 24 * 3600.0  # a file of another machine, untouched for so long, is left behind
_NUMBERS = count()
_OPEN: set[Path] = set()  # those of this process


@contextmanager
def temporary_path(folder: Path) -> Iterator[Path]:
    """A free name in `folder`; whatever has it when the block ends is removed."""
    pid = os.getpid()
    path = folder / f"{PREFIX}{_machine()}-{pid}-{_start(pid) or _UNKNOWN_START}-{next(_NUMBERS)}{SUFFIX}"
    _OPEN.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _OPEN.discard(path)


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """An empty folder of this process alone, removed at the end. Default: where the system keeps temporary files."""
    import tempfile

    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_left_behind(parent)
    with temporary_path(parent) as folder:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise PerfOptError(
                f"Cannot make a temporary folder in {parent}.",
                why=error.strerror or type(error).__name__,
                fix="make room there, or choose a folder that you may write to (--out, or TMPDIR)",
            ) from error
        yield folder


def remove_left_behind(folder: Path) -> None:
    """Remove what dead processes of this user left in `folder`; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(PREFIX) and _is_left_behind(entry):
                _remove(Path(entry.path))


def remove_own() -> None:
    """Remove what this process has open, because it ends now."""
    for path in tuple(_OPEN):
        _remove(path)


def _remove(path: Path) -> None:
    import shutil

    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_left_behind(entry: os.DirEntry[str]) -> bool:
    name = _NAME.fullmatch(entry.name)
    found = entry.stat(follow_symlinks=False)
    if name is None or (os.name == "posix" and found.st_uid != os.geteuid()):
        return False
    if name["machine"] != _machine() or os.name != "posix":
        return time.time() - found.st_mtime > _FOREIGN_AGE_S
    return _start(int(name["pid"])) != name["start"]


@cache
def _machine() -> str:
    """The same for every process that sees the same process ids."""
    try:
        namespace = str(_NAMESPACE.readlink())
    except OSError:
        namespace = ""
    return _digest(f"{os.uname().nodename if os.name == 'posix' else os.environ.get('COMPUTERNAME', '')} {namespace}")


def _start(pid: int) -> str | None:
    """A mark of when the process began, zeros where that is not known; None where there is no such process."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
        return None if state in "ZX" else _digest(f"{_BOOT.read_text('ascii')} {fields[18]}")
    except OSError:
        return _UNKNOWN_START if not _BOOT.exists() and _is_alive(pid) else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
