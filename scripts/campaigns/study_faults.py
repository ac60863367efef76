"""Tiny studies that are killed and raced, here and on a Ray cluster of two nodes: nothing is lost, bit for bit.

Half of the kills come once the first part is finished; the same command then goes on. Of two studies of one name at the
same time, into one place, the second is told why it waits. Half of the pairs declare the same, half different things.
Besides the lock of a folder, the lease of a storage that has no locks is raced: a file system of fsspec's that is none
of this machine as far as the package can see.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
from fsspec.implementations.local import LocalFileSystem

import llm_perf_opt as lpo
from llm_perf_opt.core.output_files import PREFIX, split_seal
from llm_perf_opt.core.run_lock import LOCK_FILE
from llm_perf_opt.sweeps.studies import one_writer
from llm_perf_opt.sweeps.studies.parquet_store import MANIFEST, read_manifest
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.rows import Row
from scripts.campaigns.verbs import CONFIG, Ended, start_child, wait_for

DECLARED: dict[str, dict[str, Any]] = {  # two studies of one name
    "first": {"gpus": ["h100-sxm"]},
    "other": {"gpus": ["l40s"], "prices": {"l40s": 1.5}},
}
MODELS = 3
LONGEST_S = 240.0
_RUN = re.compile(rb'(part-[0-9a-z]+-[0-9a-z]+)-[0-9a-f]{8}-|("run":)"[0-9a-f]{8}"')


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """A folder with models and study files; `engine` are further words of the command, `out` where results go."""

    folder: Path
    engine: str = "--workers 1"
    address: str = ""  # before the path of the results: another storage

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def words(self, declared: str) -> str:
        """The command for one of `DECLARED`."""
        return f"study {self.folder}/{declared}.yaml --out {self.address}{self.results} {self.engine}"

    def start(self, declared: str, desk: str = "desk") -> int:
        """The command in a fork of this process; each that runs at the same time needs a desk of its own."""
        (self.folder / desk / "tmp").mkdir(parents=True, exist_ok=True)
        return start_child(self.words(declared), self.folder / desk)

    def ended(self, pid: int, desk: str = "desk") -> Ended:
        """How it ended; one that hangs is killed, which is then its end."""
        end = time.monotonic() + LONGEST_S
        while not is_over(pid) and time.monotonic() < end:
            time.sleep(0.005)
        if not is_over(pid):
            os.kill(pid, signal.SIGKILL)
        return wait_for(pid, self.folder / desk)

    def run(self, declared: str) -> Ended:
        """From its start to its end."""
        return self.ended(self.start(declared))

    def clear(self) -> None:
        shutil.rmtree(self.results, ignore_errors=True)

    def parts(self) -> dict[str, bytes]:
        """Every part that has its name, by its path."""
        return {str(file): file.read_bytes() for file in sorted(self.results.rglob("part-*.parquet"))}

    def state(self) -> dict[str, bytes]:
        """What the study is made of now, with the identities of its runs left out: equal where every bit is."""
        listed = next(self.results.rglob(MANIFEST))
        raw = listed.read_bytes()
        files = [part.file for part in read_manifest(raw).parts.values()]
        contents = {name: (listed.parent / name).read_bytes() for name in files if (listed.parent / name).is_file()}
        contents[MANIFEST] = split_seal(raw)[0]
        plain = {_plain(name.encode()).decode(): content for name, content in contents.items()}
        return {**plain, MANIFEST: _plain(plain[MANIFEST])}

    def left_over(self) -> Iterator[str]:
        """Files that no run of a study leaves."""
        for file in self.results.rglob("*"):
            known = file.is_dir() or file.name in (LOCK_FILE, MANIFEST) or file.suffix in (".parquet", ".json")
            if PREFIX in file.name or not known:
                yield f"{file.name} was left"


def _plain(text: bytes) -> bytes:
    return _RUN.sub(rb'\1\2"00000000"', text)


@contextmanager
def study_place() -> Iterator[StudyPlace]:
    """With what a study imports loaded, so that a fork begins at once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for number in range(MODELS):
            model = folder / "models" / f"m{number}"
            model.mkdir(parents=True)
            sizes = {"intermediate_size": 128 + 16 * number}
            (model / "config.json").write_text(json.dumps({**CONFIG, **sizes}), "utf-8")
        grid = {"models": ["models/*"], "workload": {"users": 2, "input": 4}}
        for declared, fields in DECLARED.items():
            (folder / f"{declared}.yaml").write_text(json.dumps({"name": "tiny", **grid, **fields}), "utf-8")
        with quiet():
            lpo.study(folder / "first.yaml", out=folder / "warm", workers=1)
        yield StudyPlace(folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """A run that nobody disturbs: what it leaves, how long it takes, and when its first part is there."""

    state: dict[str, bytes]
    seconds: float
    first_s: float


def undisturbed(place: StudyPlace, declared: str = "first") -> Undisturbed:
    place.clear()
    began = time.monotonic()
    pid = place.start(declared)
    wait_for_part(place, pid)
    first_s = time.monotonic() - began
    ended = place.ended(pid)
    if ended.code != 0:
        raise RuntimeError(f"{place.words(declared)} ended with {ended.code}: {ended.err[-600:]}")
    return Undisturbed(state=place.state(), seconds=time.monotonic() - began, first_s=first_s)


def wait_for_part(place: StudyPlace, pid: int) -> None:
    """Until the first part has its name, or the process has ended."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end and not is_over(pid):
        if next(place.results.rglob("part-*.parquet"), None) is not None:
            return
        time.sleep(0.002)


def is_over(pid: int) -> bool:
    """Whether a child has ended; it is waited for elsewhere."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def killed(place: StudyPlace, delay_s: float, *, after_part: bool) -> bool:
    """Start the first study anew and kill it; False: it had ended before."""
    place.clear()
    pid = place.start("first")
    if after_part:
        wait_for_part(place, pid)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    return place.ended(pid).code == -signal.SIGKILL


def resumed(place: StudyPlace, expected: dict[str, bytes]) -> Iterator[str]:
    """What is wrong after the same command has gone on where a killed one stopped."""
    before = place.parts()
    ended = place.run("first")
    if ended.code != 0:
        yield f"then the same command ended with {ended.code}: {ended.err[-300:]!r}"
        return
    after = place.parts()
    yield from (
        f"{Path(name).name} was there before, and is lost" for name in before if after.get(name) != before[name]
    )
    if place.state() != expected:
        yield "the result differs from an undisturbed run, bit for bit"


KILLS = {True: 6, False: 200}  # by `quick`


def campaign_study_kills(*, quick: bool, seed: int) -> list[Row]:
    """One row for each half."""
    with study_place() as place:
        return kill_rows(place, KILLS[quick], random.Random(f"{seed} study_kills"))


def kill_rows(place: StudyPlace, count: int, draw: random.Random) -> list[Row]:
    """Half of the kills at any moment, half after the first finished part; only those count that came in time."""
    alone = undisturbed(place)
    rows = []
    for what, after_part in (("killed at any moment", False), ("killed after its first finished part", True)):
        findings = [finding for _ in range(count // 2) for finding in _one(place, alone, draw, after_part=after_part)]
        rows.append(Row(f"study, {what}", count // 2, findings))
    return rows


def _one(place: StudyPlace, alone: Undisturbed, draw: random.Random, *, after_part: bool) -> list[str]:
    """One kill, and what is wrong after it."""
    longest = alone.seconds - (alone.first_s if after_part else 0.0)
    while not killed(place, delay_s := draw.uniform(0, longest), after_part=after_part):
        longest *= 0.9  # it was faster this time, and had ended
    findings = [*resumed(place, alone.state)]
    if place.engine == "--workers 1":  # a worker of a cluster may outlive its driver for a moment
        findings += place.left_over()
    return [f"killed after {delay_s:.3f} s: {finding}" for finding in findings]


PAIRS, LEASED = {True: 2, False: 20}, {True: 2, False: 10}  # with a lock, and on a storage without


class SharedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files that several processes reach, as an object storage: no lock, but creating what is there fails."""

    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("shared://")))


def campaign_study_writers(*, quick: bool, seed: int) -> list[Row]:
    """One row for each storage."""
    draw = random.Random(f"{seed} study_writers")
    with study_place() as place:
        rows = [pair_row(place, PAIRS[quick], draw, "a folder, with a lock")]
        with _short_leases():
            shared = replace(place, address="shared://")
            rows.append(pair_row(shared, LEASED[quick], draw, "a storage without locks, with a lease"))
    return rows


@contextmanager
def _short_leases() -> Iterator[None]:
    """A storage that forks of this process know; whoever is silent for two seconds is dead."""
    fsspec.register_implementation("shared", SharedFiles, clobber=True)
    with mock.patch.multiple(one_writer, BEAT_S=0.2, DEAD_S=2.0):
        yield


def pair_row(place: StudyPlace, count: int, draw: random.Random, where: str) -> Row:
    """This many pairs; those of one declaration and those of two by turns."""
    states = {declared: undisturbed(place, declared).state for declared in DECLARED}
    findings: list[str] = []
    for number in range(count):
        pair = ("first", "other") if number % 2 else ("first", "first")
        apart_s = draw.uniform(0, 0.3)
        findings += [
            f"{' and '.join(pair)}, {apart_s:.3f} s apart: {finding}" for finding in _pair(place, pair, apart_s, states)
        ]
    return Row(f"two studies of one name, {where}", count, findings)


def _pair(
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


ON_RAY = {True: (2, 1), False: (6, 2)}  # kills and pairs
# A process of its own: forks of this one must not inherit the threads of Ray. It ends with its input.
_CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "memory": 4 * 2**30}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
try:
    cluster.add_node(**node)
    print("address", cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""


def campaign_study_on_ray(*, quick: bool, seed: int) -> list[Row]:
    """One row for each half of the kills, and one for the pairs."""
    return rows_on_ray(*ON_RAY[quick], seed)


def rows_on_ray(kills: int, pairs: int, seed: int) -> list[Row]:
    """This many of each, on one cluster."""
    draw = random.Random(f"{seed} study_on_ray")
    with two_nodes() as address, study_place() as place:
        on_ray = replace(place, engine=f"--engine ray --address {address}")
        return [*kill_rows(on_ray, kills, draw), pair_row(on_ray, pairs, draw, "on two nodes")]


@contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a cluster, which ends with the block."""
    command = [sys.executable, "-c", _CLUSTER]
    environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert running.stdin is not None and running.stdout is not None  # for type checkers: pipes were asked for
    try:
        addresses = (line.split()[1] for line in running.stdout if line.startswith("address "))
        yield next(addresses)
    finally:
        running.stdin.close()
        running.wait(timeout=120)
        running.stdout.close()
