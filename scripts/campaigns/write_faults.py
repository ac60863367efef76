"""Faults at each open, write, fsync, rename and mkdir of each verb: a name holds the old file or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.campaigns.rows import Row
from scripts.campaigns.verbs import (
    RESUMED,
    VERBS,
    WRITING,
    begun_anew,
    half_files,
    is_of,
    restore,
    results,
    run_here,
    temporaries,
    workplace,
)

NAME = "write_faults"
ERRORS: tuple[int | type[BaseException], ...] = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, KeyboardInterrupt)
SHORT_WRITES = 12  # for each verb in the full campaign
SLOW = ("profile", "export", "pages", "study", "export with weights", "trace with a picture")
QUICK = {
    "trace": 5,
    "graph": 6,
    "cost": 4,
    "report": 4,
    "profile": 2,
    "calibrate": 4,
    "join": 4,
    "trace under the profiler": 4,
    "study": 4,
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_KINDS = {"open": "open", "os.rename": "rename", "os.mkdir": "mkdir"}


class Plan:
    """Counts what the main thread does to files below `place`, and acts at one of these points."""

    def __init__(self) -> None:
        self.place = ""
        self.counts: Counter[str] = Counter()
        self.at: tuple[str, int] | None = None
        self.act: Callable[[], None] = lambda: None
        self.is_hit = False

    def point(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.at == (kind, self.counts[kind]):
            self.is_hit = True
            self.act()

    def on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook of Python, which may raise in the place of the call."""
        if not self.place or event not in _KINDS or threading.current_thread() is not threading.main_thread():
            return
        if event == "open" and not arguments[2] & _WRITES:
            return
        path = arguments[1 if event == "os.rename" else 0]
        if isinstance(path, (str, os.PathLike)) and str(Path(path).absolute()).startswith(self.place):
            self.point(_KINDS[event])


PLAN = Plan()
_HOOKED: list[Plan] = []
_FSYNC = os.fsync


@contextmanager
def planned(place: Path, at: tuple[str, int] | None = None, act: Callable[[], None] = lambda: None) -> Iterator[Plan]:
    """While open, points below `place` are counted, and `act` is called at one of them."""
    if not _HOOKED:
        sys.addaudithook(PLAN.on_audit)  # Python keeps it for good
        _HOOKED.append(PLAN)

    def fsync(descriptor: int) -> None:
        PLAN.point("fsync")
        _FSYNC(descriptor)

    PLAN.counts, PLAN.at, PLAN.act, PLAN.is_hit, PLAN.place = Counter(), at, act, False, f"{place}/"
    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield PLAN
    finally:
        PLAN.place, os.fsync = "", _FSYNC


def points_of(words: str, place: Path) -> list[tuple[str, int]]:
    """Where this verb touches files: the n-th open, fsync, rename or mkdir."""
    with planned(place) as plan:
        run_here(words, place)
    return [(kind, number) for kind, count in sorted(plan.counts.items()) for number in range(1, count + 1)]


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each verb that writes files."""
    verbs = QUICK if quick else WRITING
    with workplace(verbs) as place:
        return [_row(verb, place, QUICK[verb] if quick else None, random.Random(f"{seed} {verb}")) for verb in verbs]


def _row(verb: str, place: Path, wanted: int | None, chosen: random.Random) -> Row:
    words = VERBS[verb]
    clean = results(place)
    old = clean if verb == "profile" else dict.fromkeys(clean, b"the old file")
    old = begun_anew(words, clean) if verb in RESUMED else old
    forced = words if "--force" in words or verb in RESUMED else f"{words} --force"
    restore(place, old if verb in RESUMED else clean)
    points = points_of(forced, place)
    faults: list[tuple[str, int, Any]] = [(*point, error) for point in points for error in _errors(verb, chosen)]
    sizes = [len(content) for name, content in clean.items() if is_of(words, name)]
    faults += [("write", chosen.randrange(chosen.choice(sizes)), None) for _ in range(SHORT_WRITES)]
    if wanted is not None:
        faults = chosen.sample(faults, min(wanted, len(faults)))
    findings: list[str] = []
    for kind, number, error in faults:
        restore(place, old)
        where = f"{verb}, {_error_name(error)} at {kind} {number}"
        findings += [f"{where}: {found}" for found in _faulted(forced, words, place, kind, number, error, old, clean)]
    restore(place, clean)
    return Row(campaign=NAME, what=f"{verb}, {len(points)} points", tried=len(faults), findings=findings)


def _errors(verb: str, chosen: random.Random) -> tuple[int | type[BaseException], ...]:
    """All of them at each point, of the verbs that take seconds one."""
    return (chosen.choice(ERRORS),) if verb in SLOW else ERRORS


def _error_name(error: int | type[BaseException] | None) -> str:
    if error is None:
        return "a full disk"
    return errno.errorcode[error] if isinstance(error, int) else error.__name__


def _faulted(
    words: str,
    again: str,
    place: Path,
    kind: str,
    number: int,
    error: int | type[BaseException] | None,
    old: Mapping[str, bytes],
    clean: Mapping[str, bytes],
) -> Iterator[str]:
    """What one fault did wrong, and whether the same command then works."""

    def act() -> None:
        if isinstance(error, int):
            raise OSError(error, os.strerror(error))
        if error is not None:
            raise error

    with planned(place, (kind, number), act) as plan, file_limit(number if kind == "write" else None):
        ended = run_here(words, place)
    is_hit = plan.is_hit or kind == "write"
    is_interrupt = error is KeyboardInterrupt
    if ended.is_traceback:
        yield f"a traceback: {ended.err.strip().splitlines()[-1]:.200}"
    elif is_hit and not (ended.code == 130 if is_interrupt else ended.is_told) and ended.code != 0:
        yield f"exit code {ended.code}: {ended.err[-200:]!r}"
    yield from half_files(place, old, clean)
    missing = clean.keys() - results(place).keys()
    if ended.code == 0 and missing:
        yield f"exit code 0 without {', '.join(sorted(missing))}"
    yield from (f"{name} was left" for name in temporaries(place))
    after = run_here(again, place)
    if after.code != 0:
        yield f"then the same command ended with {after.code}: {after.err[-300:]!r}"
    yield from (f"after the next run, {found}" for found in half_files(place, old, clean))


@contextmanager
def file_limit(size: int | None) -> Iterator[None]:
    """No file may grow beyond so many bytes: what is written after that fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
