"""SIGKILL at any time: files are whole or absent, and the next run works and leaves nothing temporary.

Half of the kills come at a random time, half exactly where a verb opens, syncs or renames a file.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from scripts.campaigns.rows import Row
from scripts.campaigns.verbs import (
    RESUMED,
    VERBS,
    begun_anew,
    half_files,
    is_of,
    is_whole,
    restore,
    results,
    seconds_of_child,
    start_child,
    temporaries,
    wait_for,
    workplace,
)
from scripts.campaigns.write_faults import SLOW, planned, points_of

NAME = "kills"
FULL = dict.fromkeys(VERBS, 16) | dict.fromkeys(SLOW, 12) | {"predict": 10, "compare": 10, "profile": 26}
QUICK = (
    dict.fromkeys(VERBS, 2) | dict.fromkeys(SLOW, 0) | {"trace": 4, "cost": 3, "calibrate": 4, "profile": 2, "study": 2}
)
Point = tuple[str, int]


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each verb."""
    wanted = QUICK if quick else FULL
    verbs = [verb for verb in VERBS if wanted[verb]]
    with workplace(verbs) as place:
        return [_row(verb, place, wanted[verb], random.Random(f"{seed} {verb}")) for verb in verbs]


def _row(verb: str, place: Path, wanted: int, chosen: random.Random) -> Row:
    words = VERBS[verb]
    clean = results(place)
    fresh = begun_anew(words, clean) if verb in RESUMED else {}
    restore(place, fresh if verb in RESUMED else clean)
    points = points_of(f"{words} --force" if verb == "profile" else words, place)
    restore(place, fresh if verb in RESUMED else clean)
    seconds = seconds_of_child(words, place)
    findings: list[str] = []
    for number in range(wanted):
        # A profile is begun anew, goes on in its own folder, or is cleared; the other verbs overwrite.
        first = f"{words} --force" if verb == "profile" and number % 3 == 0 else words
        is_fresh = number % 3 == 1 or verb in RESUMED
        old: Mapping[str, bytes] = fresh if is_fresh else clean
        restore(place, old)
        if number % 2 and points:
            point = chosen.choice(points)
            where, pid = f"at {point[0]} {point[1]}", start_child(first, place, partial(_kill_at, place, point))
        else:
            delay = chosen.uniform(0, 1.1 * seconds)
            where, pid = f"after {delay:.3f} s", start_child(first, place)
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        findings += [f"{verb}, killed {where}: {found}" for found in _killed(pid, words, place, old, clean)]
    restore(place, clean)
    return Row(campaign=NAME, what=f"{verb}, {seconds:.1f} s", tried=wanted, findings=findings)


def _kill_at(place: Path, point: Point) -> None:
    """In the child: end without warning when it comes to this point."""
    kill: Callable[[], None] = partial(os.kill, os.getpid(), signal.SIGKILL)
    planned(place, point, kill).__enter__()


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
    found = results(place)
    yield from (f"after the next run, {name} was missing" for name in clean if name not in found and is_of(words, name))
    yield from (
        f"after the next run, {name} was half a file"
        for name, content in found.items()
        if content != clean.get(name) and not is_whole(name, content)
    )
