"""Results are written whole or not at all, through temporary files that the next run removes if their process died.

A temporary name holds the machine, the process id and a mark of when that process began: an id alone is given out
again.

JSON files have a seal: the last key holds the SHA-256 of every byte before it. Damage of a file that is still valid
JSON, such as one digit of a time, is found by it. A file without a seal (of an older version, or with the seal removed
by whoever changed the file on purpose) is read with all other checks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from llm_perf_opt.core.errors import PerfOptError

PREFIX = ".llm-perf-opt-"
SUFFIX = ".partial"
_NAME = re.compile(r"\.llm-perf-opt-(?P<machine>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<start>[0-9a-f]{8})-\d+\.partial")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")  # containers of one host may share its name, and count processes by themselves
_UNKNOWN_START = "0" * 8  # where the system does not say when a process began
_FOREIGN_AGE_S = 24 * 3600.0  # a file of another machine, untouched for so long, is left behind
_NUMBERS = count()
_OPEN: set[Path] = set()  # temporary files of this process


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
                fix="free some disk space there, or choose a folder that you may write to (--out, or TMPDIR)",
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
    status = entry.stat(follow_symlinks=False)
    if name is None or (os.name == "posix" and status.st_uid != os.geteuid()):
        return False
    if name["machine"] != _machine() or os.name != "posix":
        return time.time() - status.st_mtime > _FOREIGN_AGE_S
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


# Files that are written: refused before the work begins where one would be overwritten, whole or not at all.
#
# There is one way: write under a temporary name in the same folder, have it on the disk, rename, and have the folder on
# the disk. Whatever fails in between, and whenever the process is killed, a name holds the old file or the new one.

_NOT_SYNCED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}  # a file system that has no such request
_NO_ROOM = "free some disk space there, or choose another --out"
_NOT_ALLOWED = "choose a folder that you may write to"
_FIXES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EISDIR: "name a file, not a folder",
}
_WRONG_NAMES = {errno.ENAMETOOLONG, errno.EISDIR}  # wrong whatever the state of the machine


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """One file, from its old content to the new in one step; on an error nothing is left behind."""
    write_together({path: pieces})


def write_together(files: Mapping[Path, Iterable[bytes]]) -> None:
    """Several files that belong together: all of them are on the disk before the first gets its name."""
    with ExitStack() as temporaries:
        staged: dict[Path, Path] = {}
        for name, pieces in files.items():
            path = name
            try:
                if _is_stream(path):
                    with path.open("wb") as stream:
                        stream.writelines(pieces)
                    continue
                path = Path(os.path.realpath(name)) if name.is_symlink() else name  # a link stays one
                remove_left_behind(path.parent)
                staged[path] = temporaries.enter_context(temporary_path(path.parent))
                with staged[path].open("xb") as file:
                    file.writelines(pieces)
                    file.flush()
                    _sync(file.fileno())
            except BrokenPipeError:  # whoever reads the stream has enough
                raise
            except OSError as error:
                raise cannot_write(path, error) from error
        for path, partial in staged.items():
            _move(partial, path)


def move_whole(file: Path, path: Path) -> None:
    """Give a finished file its name; both are in the same file system."""
    try:
        with file.open("rb") as written:
            _sync(written.fileno())
    except OSError as error:
        raise cannot_write(path, error) from error
    _move(file, path)


def _move(file: Path, path: Path) -> None:
    try:
        file.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def _is_stream(path: Path) -> bool:
    """A device or a pipe, such as /dev/stdout: to rename a file onto it would replace it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise


def _sync_folder(folder: Path) -> None:
    """A new name is on the disk when its folder is."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written to but not read, or a system that opens no folders
        return
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> PerfOptError:
    """What went wrong at `path`, in words."""
    return _refused(f"Cannot write {path}.", error)


def _refused(what: str, error: OSError) -> PerfOptError:
    number = error.errno or 0
    return PerfOptError(
        what,
        why=error.strerror or type(error).__name__,
        fix=_FIXES.get(number, "choose another --out"),
        exit_code=2 if number in _WRONG_NAMES else 1,
    )


def plain_values(record: object) -> dict[str, Any]:
    """The record of a file as the dicts, lists and numbers of its JSON text; NaN and infinities raise."""
    import msgspec

    plain = msgspec.to_builtins(record, enc_hook=lambda mapping: {**mapping})  # a mapping of any other type than dict
    document: dict[str, Any] = json.loads(json.dumps(plain, allow_nan=False))
    return document


def require_free(files: Iterable[Path], *, force: bool) -> None:
    """Nothing is overwritten silently; `force` is the word that allows it. A folder is never replaced by a file."""
    taken = []
    for file in files:
        try:
            if file.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            taken += [str(file)] if file.exists() and not _is_stream(file) else []
        except OSError as error:
            raise cannot_write(file, error) from error
    if taken and not force:
        raise PerfOptError(
            f"Would overwrite {', '.join(taken)}.",
            why="a result is never overwritten silently",
            fix="add --force to replace what is there, or choose another --out",
        )


def make_folder(folder: Path) -> None:
    """Make it, and whatever is above it, and see that files can be written there: before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(f"Cannot make the folder {folder}.", error) from error
    remove_left_behind(folder)
    try:
        with temporary_path(folder) as trial:
            trial.touch(exist_ok=False)
    except OSError as error:
        raise _refused(f"Cannot write to the folder {folder}.", error) from error


def free_file(file: Path, *, force: bool) -> None:
    """The same for one file: its place is free, and its folder is there."""
    require_free([file], force=force)
    make_folder(file.parent)


def write_result(file: Path, content: str | bytes) -> None:
    """Write it whole or not at all."""
    write_whole(file, [content.encode() if isinstance(content, str) else content])


SEAL_KEY = "content_sha256"
_KEY = f'"{SEAL_KEY}"'.encode()
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_ESCAPES = re.compile(
    r"(?P<whole>\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\[^u]|\\u(?![dD][89a-fA-F])....)"
    r"|\\u(?P<code>[dD][89a-fA-F]..)|[\ud800-\udfff]"
)
_PAIR = re.compile(_KEY + rb'\s*:\s*"([0-9a-f]{64})"')


class SealedKind(Protocol):
    """What a refusal says of a kind of file: `FileKind` in `reading.py`, which looks down on this file."""

    @property
    def name(self) -> str:
        """As messages call it."""

    @property
    def fix(self) -> str:
        """What to do about a bad one."""

    @property
    def error(self) -> type[PerfOptError]:
        """What a bad one raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The digest that a file was written with, and the one that its bytes have: empty where the seal is not last."""

    written: str
    computed: str

    def require(self, kind: SealedKind) -> None:
        """Refuse a file that is not, byte for byte, what was written."""
        if self.written != self.computed:
            raise _changed(kind)


def _changed(kind: SealedKind) -> PerfOptError:
    """The error for a file that does not have the content that its seal was made for."""
    return kind.error(
        f"The {kind.name} was changed after it was written.",
        why=f"its content does not have the digest in {SEAL_KEY!r}",
        fix=f"{kind.fix}; if the change was meant, remove {SEAL_KEY!r} and the file is checked without it",
    )


def sealed_lines(document: Mapping[str, Any]) -> Iterator[bytes]:
    """The text in pieces, one line per top-level key, closed by the digest of all of it."""
    digest = hashlib.sha256()
    opening = "{"
    for key, value in document.items():
        text = f"{opening}{json.dumps(key)}:{json.dumps(value, separators=(',', ':'), allow_nan=False)},\n"
        line = _whole_characters(text).encode()
        digest.update(line)
        yield line
        opening = ""
    yield f'{_KEY.decode()}:"{digest.hexdigest()}"}}\n'.encode()


def sealed_text(text: str) -> str:
    """The text of a JSON object that holds something, with the seal as its last key."""
    head, brace, rest = text.rstrip().rpartition("}")
    if not brace or rest or head.strip() in ("", "{"):
        raise ValueError("only a JSON object that holds something is sealed")
    head = _whole_characters(head)
    indent = re.match(r"\{\n( *)", head)
    body = f"{head.rstrip()},\n{indent[1] if indent else ''}"
    return f'{body}{_KEY.decode()}: "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def _whole_characters(text: str) -> str:
    """A JSON text in which half of a surrogate pair, which no reader takes, is spelled out as six characters."""
    if not _HALF.search(text):
        return text
    return _ESCAPES.sub(lambda escape: escape["whole"] or f"\\\\u{escape['code'] or f'{ord(escape[0]):04x}'}", text)


def split_seal(raw: bytes) -> tuple[bytes, Seal | None]:
    """The text of the object without its seal, and the seal; None where there is none.

    A seal that something follows is broken: whatever is wrong there is found first, by its place.
    """
    pair = _find_pair(raw)
    if pair is None:
        return raw, None
    before, after = raw[: pair.start()].rstrip(), raw[pair.end() :].lstrip()
    if after.startswith(b","):
        return before + after[1:], _seal(raw, pair)
    return before.removesuffix(b",") + after, _seal(raw, pair)


def check_seal(raw: bytes, kind: SealedKind) -> None:
    """Refuse a sealed file that is not, byte for byte, what was written up to its seal, or that goes on after it."""
    pair = _find_pair(raw)
    if pair is None:
        raise _changed(kind)
    _seal(raw, pair).require(kind)


def _find_pair(raw: bytes) -> re.Match[bytes] | None:
    start = raw.rfind(_KEY)
    return None if start < 0 else _PAIR.match(raw, start)


def _seal(raw: bytes, pair: re.Match[bytes]) -> Seal:
    is_last = raw[pair.end() :].strip() == b"}"
    digest = hashlib.sha256(memoryview(raw)[: pair.start()]).hexdigest() if is_last else ""
    return Seal(written=pair[1].decode(), computed=digest)
