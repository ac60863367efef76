"""Two studies of one name at the same time, into one place: nothing is lost, and the second is told why it waits.

Half of the pairs declare the same, half different things. Besides the lock of a folder, the lease of a storage that
has no locks is raced: a file system of fsspec's that is none of this machine as far as the package can see.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import fsspec
from fsspec.implementations.local import LocalFileSystem

from llm_perf_opt.labs.study import one_writer
from scripts.campaigns.rows import Row
from scripts.campaigns.study_places import DECLARED, StudyPlace, study_place, undisturbed

NAME = "study_writers"
FULL, QUICK = 20, 2
LEASED = {True: 2, False: 10}  # pairs on a storage without locks, by `quick`


class SharedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files that several processes reach, as an object storage: no lock, but creating what is there fails."""

    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("shared://")))


def run(*, quick: bool, seed: int) -> list[Row]:
    """One row for each storage."""
    draw = random.Random(f"{seed} {NAME}")
    with study_place() as place:
        rows = [pair_row(place, QUICK if quick else FULL, draw, NAME, "a folder, with a lock")]
        with _short_leases():
            shared = replace(place, address="shared://")
            rows.append(pair_row(shared, LEASED[quick], draw, NAME, "a storage without locks, with a lease"))
    return rows


@contextmanager
def _short_leases() -> Iterator[None]:
    """A storage that forks of this process know; whoever is silent for two seconds is dead."""
    fsspec.register_implementation("shared", SharedFiles, clobber=True)
    with mock.patch.multiple(one_writer, BEAT_S=0.2, DEAD_S=2.0):
        yield


def pair_row(place: StudyPlace, count: int, draw: random.Random, campaign: str, where: str) -> Row:
    """So many pairs; those of one declaration and those of two by turns."""
    states = {declared: undisturbed(place, declared).state for declared in DECLARED}
    findings: list[str] = []
    for number in range(count):
        pair = ("first", "other") if number % 2 else ("first", "first")
        apart_s = draw.uniform(0, 0.3)
        findings += [
            f"{' and '.join(pair)}, {apart_s:.3f} s apart: {one}" for one in _one(place, pair, apart_s, states)
        ]
    return Row(campaign=campaign, what=f"two studies of one name, {where}", tried=count, findings=findings)


def _one(
    place: StudyPlace, pair: tuple[str, str], apart_s: float, states: dict[str, dict[str, bytes]]
) -> Iterator[str]:
    """What two at once did wrong."""
    place.clear()
    pids = []
    for number, declared in enumerate(pair):
        pids.append(place.start(declared, f"desk{number}"))
        time.sleep(0 if number else apart_s)
    ends = [place.ended(pid, f"desk{number}") for number, pid in enumerate(pids)]
    for ended in ends:
        if ended.code and not (ended.is_told and "Another run" in ended.err):
            yield f"it ended with {ended.code}: {ended.err[-300:]!r}"
    if all(ended.code for ended in ends):
        yield "none of the two was let in"
    parts = place.parts()
    for ended, declared in zip(ends, pair, strict=True):
        again = place.run(declared)
        if again.code:
            yield f"then {declared} ended with {again.code}: {again.err[-300:]!r}"
        elif place.state() != states[declared]:
            yield f"{declared} is not what it is alone, bit for bit"
        if ended.code == 0 and place.parts().keys() != parts.keys():
            yield f"{declared} had ended well, and parts of it were computed again"
        if any(place.parts().get(name) != content for name, content in parts.items()):
            yield "a part was lost or changed"
        parts = place.parts()
