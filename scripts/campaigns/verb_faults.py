"""Every verb broken as a whole: faults at each open, write, fsync, rename and mkdir; SIGKILL and Ctrl-C at any time.

A name holds the old file or the new one, and the next run works and leaves nothing temporary. Half of the kills come at
a random time, half exactly where a verb opens, syncs or renames a file. Ctrl-C ends with code 130 and one line, and in
a program of others torch is as it was.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from scripts.campaigns.plain_world import changes, describe, look, put_right
from scripts.campaigns.rows import Row
from scripts.campaigns.run_faults import of_module, outcome, quiet_streams, traced
from scripts.campaigns.stand_in import PLAN, make_target, plain_model
from scripts.campaigns.verbs import (
    RESUMED,
    VERBS,
    WRITING,
    Ended,
    begun_anew,
    half_files,
    is_of,
    is_whole,
    restore,
    results,
    run_here,
    seconds_of_child,
    start_child,
    temporaries,
    wait_for,
    workplace,
)

ERRORS: tuple[int | type[BaseException], ...] = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, KeyboardInterrupt)
SHORT_WRITES = 12  # for each verb in the full campaign
SLOW = ("profile", "export", "pages", "study", "export with weights", "trace with a picture")
QUICK_FAULTS = {"trace": 5, "graph": 6, "cost": 4, "report": 4, "profile": 2, "calibrate": 4, "join": 4}
QUICK_FAULTS |= {"trace under the profiler": 4, "study": 4}
KILLS = dict.fromkeys(VERBS, 16) | dict.fromkeys(SLOW, 12) | {"trace on a device": 10, "compare": 10, "profile": 26}
QUICK_KILLS = dict.fromkeys(VERBS, 2) | dict.fromkeys(SLOW, 0)
QUICK_KILLS |= {"trace": 4, "cost": 3, "calibrate": 4, "profile": 2, "study": 2}
HERE, QUICK_HERE = {"weightless": 180, "hooks": 120, "module": 80, "profiler": 20}, 15
CHILDREN, QUICK_CHILDREN = 6, 1  # for each verb
STARTS, QUICK_STARTS = 36, 2  # of new processes, which have to import everything
Point = tuple[str, int]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_KINDS = {"open": "open", "os.rename": "rename", "os.mkdir": "mkdir"}


class Touched:
    """Counts what the main thread does to files below `place`, and acts at one of these points."""

    def __init__(self) -> None:
        self.place = ""
        self.counts: Counter[str] = Counter()
        self.at: Point | None = None
        self.act: Callable[[], None] = lambda: None
        self.is_hit = self.is_hooked = False

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


_TOUCHED = Touched()
_FSYNC = os.fsync


@contextmanager
def planned(place: Path, at: Point | None = None, act: Callable[[], None] = lambda: None) -> Iterator[Touched]:
    """While open, points below `place` are counted, and `act` is called at one of them."""
    if not _TOUCHED.is_hooked:
        sys.addaudithook(_TOUCHED.on_audit)  # Python keeps it for good
        _TOUCHED.is_hooked = True

    def fsync(descriptor: int) -> None:
        _TOUCHED.point("fsync")
        _FSYNC(descriptor)

    _TOUCHED.counts, _TOUCHED.at, _TOUCHED.act, _TOUCHED.is_hit = Counter(), at, act, False
    _TOUCHED.place, os.fsync = f"{place}/", fsync  # type: ignore[assignment]
    try:
        yield _TOUCHED
    finally:
        _TOUCHED.place, os.fsync = "", _FSYNC


def points_of(work: Callable[[], object], place: Path) -> list[Point]:
    """Where this touches files: the n-th open, fsync, rename or mkdir."""
    with planned(place) as touched:
        work()
    return [(kind, number) for kind, count in sorted(touched.counts.items()) for number in range(1, count + 1)]


# ---- faults


def campaign_write_faults(*, quick: bool, seed: int) -> list[Row]:
    """One row for each verb that writes files."""
    verbs = QUICK_FAULTS if quick else WRITING
    with workplace(verbs) as place:
        wanted = QUICK_FAULTS if quick else {}
        return [fault_row(verb, place, wanted.get(verb), random.Random(f"{seed} {verb}")) for verb in verbs]


def fault_row(verb: str, place: Path, wanted: int | None, chosen: random.Random) -> Row:
    words = VERBS[verb]
    clean = results(place)
    old = clean if verb == "profile" else dict.fromkeys(clean, b"the old file")
    old = begun_anew(words, clean) if verb in RESUMED else old
    forced = words if "--force" in words or verb in RESUMED else f"{words} --force"
    restore(place, old if verb in RESUMED else clean)
    points = points_of(lambda: run_here(forced, place), place)
    faults: list[tuple[str, int, Any]] = [
        (*point, error) for point in points for error in ((chosen.choice(ERRORS),) if verb in SLOW else ERRORS)
    ]
    sizes = [len(content) for name, content in clean.items() if is_of(words, name)]
    faults += [("write", chosen.randrange(chosen.choice(sizes)), None) for _ in range(SHORT_WRITES)]
    if wanted is not None:
        faults = chosen.sample(faults, min(wanted, len(faults)))
    findings: list[str] = []
    for kind, number, error in faults:
        restore(place, old)
        faulted = _faulted(forced, words, place, (kind, number), error, old, clean)
        findings += [f"{verb}, {error_name(error)} at {kind} {number}: {finding}" for finding in faulted]
    restore(place, clean)
    return Row(f"{verb}, {len(points)} points", len(faults), findings)


def error_name(error: int | type[BaseException] | None) -> str:
    if error is None:
        return "a full disk"
    return errno.errorcode[error] if isinstance(error, int) else error.__name__


def raise_planned(error: int | type[BaseException] | None) -> None:
    """The planned error; none where the disk is full instead."""
    if error is not None:
        raise OSError(error, os.strerror(error)) if isinstance(error, int) else error


def _faulted(
    words: str,
    again: str,
    place: Path,
    point: Point,
    error: int | type[BaseException] | None,
    old: Mapping[str, bytes],
    clean: Mapping[str, bytes],
) -> Iterator[str]:
    """What one fault did wrong, and whether the same command then works."""
    limit = point[1] if error is None else None
    with planned(place, point, partial(raise_planned, error)) as touched, file_limit(limit):
        ended = run_here(words, place)
    is_expected = ended.code == 130 if error is KeyboardInterrupt else ended.is_told
    if ended.is_traceback:
        yield f"a traceback: {ended.err.strip().splitlines()[-1]:.200}"
    elif (touched.is_hit or error is None) and ended.code and not is_expected:
        yield f"exit code {ended.code}: {ended.err[-200:]!r}"
    yield from half_files(place, old, clean)
    missing = clean.keys() - results(place).keys()
    if ended.code == 0 and missing:
        yield f"exit code 0 without {', '.join(sorted(missing))}"
    yield from (f"{name} was left" for name in temporaries(place))
    after = run_here(again, place)
    if after.code != 0:
        yield f"then the same command ended with {after.code}: {after.err[-300:]!r}"
    yield from (f"after the next run, {half}" for half in half_files(place, old, clean))


@contextmanager
def file_limit(size: int | None) -> Iterator[None]:
    """No file may grow beyond this many bytes: what is written after that fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- kills


def campaign_kills(*, quick: bool, seed: int) -> list[Row]:
    """One row for each verb."""
    wanted = {verb: count for verb, count in (QUICK_KILLS if quick else KILLS).items() if count}
    with workplace(wanted) as place:
        return [kill_row(verb, place, count, random.Random(f"{seed} {verb}")) for verb, count in wanted.items()]


def kill_row(verb: str, place: Path, wanted: int, chosen: random.Random) -> Row:
    words = VERBS[verb]
    clean = results(place)
    fresh = begun_anew(words, clean) if verb in RESUMED else {}
    forced = f"{words} --force" if verb == "profile" else words
    restore(place, fresh if verb in RESUMED else clean)
    points = points_of(lambda: run_here(forced, place), place)
    restore(place, fresh if verb in RESUMED else clean)
    seconds = seconds_of_child(words, place)
    findings: list[str] = []
    for number in range(wanted):
        # A profile is begun anew, goes on in its own folder, or is cleared; the other verbs overwrite.
        first = forced if number % 3 == 0 else words
        old: Mapping[str, bytes] = fresh if number % 3 == 1 or verb in RESUMED else clean
        restore(place, old)
        if number % 2 and points:
            point = chosen.choice(points)
            where, pid = f"at {point[0]} {point[1]}", start_child(first, place, partial(_kill_at, place, point))
        else:
            delay = chosen.uniform(0, 1.1 * seconds)
            where, pid = f"after {delay:.3f} s", start_child(first, place)
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        findings += [f"{verb}, killed {where}: {finding}" for finding in _killed(pid, words, place, old, clean)]
    restore(place, clean)
    return Row(f"{verb}, {seconds:.1f} s", wanted, findings)


def _kill_at(place: Path, point: Point) -> None:
    """In the child: end without warning when it comes to this point."""
    planned(place, point, partial(os.kill, os.getpid(), signal.SIGKILL)).__enter__()


def _killed(pid: int, words: str, place: Path, old: Mapping[str, bytes], clean: Mapping[str, bytes]) -> Iterator[str]:
    """What the kill of this process did wrong."""
    ended = wait_for(pid, place)
    if ended.code not in (0, -signal.SIGKILL):
        yield f"it ended with {ended.code}: {ended.err[-300:]!r}"
    yield from half_files(place, old, clean)
    again = wait_for(start_child(words, place), place)
    if again.code != 0:
        yield f"then the same command ended with {again.code}: {again.err[-300:]!r}"
    yield from (f"{name} was still left after the next run" for name in temporaries(place))
    left = results(place)
    yield from (f"after the next run, {name} was missing" for name in clean if name not in left and is_of(words, name))
    yield from (
        f"after the next run, {name} was half a file"
        for name, content in left.items()
        if content != clean.get(name) and not is_whole(name, content)
    )


# ---- interrupts


def campaign_interrupts(*, quick: bool, seed: int) -> list[Row]:
    """In this process, in processes that have loaded torch, and in new ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started this in the background
    rows = list(_in_process(random.Random(seed), quick=quick))
    verbs = [verb for verb in VERBS if verb not in SLOW or not quick]
    children, starts = (QUICK_CHILDREN, QUICK_STARTS) if quick else (CHILDREN, STARTS)
    with workplace(verbs) as place:
        rows += [interrupted_row(verb, place, children, random.Random(f"{seed} {verb}")) for verb in verbs]
        return [*rows, _starts(place, starts, random.Random(f"{seed} starts"))]


def _in_process(chosen: random.Random, *, quick: bool) -> Iterator[Row]:
    PLAN.set(0, RuntimeError)
    module = plain_model()
    works: dict[str, Callable[[], object]] = {
        "weightless": lambda: traced("weightless", make_target()),
        "hooks": lambda: traced("hooks", make_target(module)),
        "module": lambda: of_module(module),
        "profiler": lambda: traced("profiler", make_target(module)),
    }
    for name, work in works.items():
        if wanted := (0 if name == "profiler" else QUICK_HERE) if quick else HERE[name]:
            with quiet_streams():
                row = pressed_in_process(name, work, module, wanted, chosen)
            yield row


def pressed_in_process(
    name: str, work: Callable[[], object], module: nn.Module, wanted: int, chosen: random.Random
) -> Row:
    """Ctrl-C while `work` runs: it raises or comes to its end, and leaves everything as it was."""
    work()
    started = time.perf_counter()
    first = work()
    seconds = time.perf_counter() - started
    findings: list[str] = []
    raised = 0
    for _ in range(wanted):
        delay = chosen.uniform(0, seconds)
        caught, findings_of_run = _pressed(work, delay, module)
        raised += isinstance(caught, KeyboardInterrupt)
        if isinstance(caught, BaseException) and not isinstance(caught, KeyboardInterrupt):
            findings_of_run.append(f"the caller got {caught!r:.160}")
        if not isinstance(caught, BaseException) and caught != first:
            findings_of_run.append("the run went on and gave other figures")
        if outcome(work) != first:
            findings_of_run.append("the next run gave other figures")
        findings += [f"{name}, after {delay * 1e3:.2f} ms: {finding}" for finding in findings_of_run]
    if not raised:
        findings.append(f"{name}: no interrupt took effect")
    return Row(f"{name}, in process, {raised} took effect", wanted, findings)


def _pressed(work: Callable[[], object], delay: float, module: nn.Module) -> tuple[object, list[str]]:
    alarm = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    before, plain = look(), describe(module)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-5))
        caught = outcome(work)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt as error:  # between the run and here
        caught = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        changed = list(changes(before, look()))
        if describe(module) != plain:
            changed.append("the caller's module was changed")
        if changed:
            put_right(before)
        signal.signal(signal.SIGALRM, alarm)
    return caught, changed


def interrupted_row(verb: str, place: Path, wanted: int, chosen: random.Random) -> Row:
    words = VERBS[verb] if verb != "profile" else f"{VERBS[verb]} --force"
    clean = results(place)
    old = begun_anew(words, clean) if verb in RESUMED else clean
    restore(place, old)
    seconds = seconds_of_child(words, place)
    findings: list[str] = []
    for _ in range(wanted):
        restore(place, old)
        delay = chosen.uniform(0.02, seconds)
        pid = start_child(words, place)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        left = [*interrupted(wait_for(pid, place)), *half_files(place, clean)]
        left += [f"{name} was left" for name in temporaries(place)]
        findings += [f"{verb}, after {delay:.3f} s: {finding}" for finding in left]
    restore(place, clean)
    return Row(f"{verb}, torch loaded", wanted, findings)


def _starts(place: Path, wanted: int, chosen: random.Random) -> Row:
    """New processes, from the first import on."""
    command = [sys.executable, "-c", _START, *VERBS["trace"].split()]
    clean = results(place)
    findings: list[str] = []
    for _ in range(wanted):
        delay = chosen.choice((chosen.uniform(0, 0.5), chosen.uniform(0.5, 6)))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=place, text=True, **pipes) as process:
            assert process.stdout is not None
            process.stdout.readline()  # from here on it is ours
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
        left = [*interrupted(Ended(code=process.returncode, out=out, err=err)), *half_files(place, clean)]
        findings += [f"a new process, after {delay:.3f} s: {finding}" for finding in left]
    return Row("new processes, from the first import on", wanted, findings)


_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from llm_perf_opt import __main__ as entry
handled = entry.signal.signal
def installed(*arguments):
    found = handled(*arguments)
    entry.signal.signal = handled
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    return found
entry.signal.signal = installed
entry.main()
"""


def interrupted(ended: Ended) -> Iterator[str]:
    """What is wrong with this end. A run that was finished by then may say so."""
    if ended.is_traceback or "KeyboardInterrupt" in ended.err:
        yield f"a traceback: {ended.err.strip().splitlines()[-1]:.200}"
    if ended.code not in (0, 130):
        yield f"exit code {ended.code}: {ended.err[-200:]!r}"
    if ended.code == 130 and ended.err.count("Interrupted.") != 1:
        yield f"{ended.err.count('Interrupted.')} lines say that it was interrupted: {ended.err[-200:]!r}"
