"""Tiny studies that are killed and raced: where they lie, how they are run in forks, and their results as bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llm_perf_opt as lpo
from llm_perf_opt.core.output_files import PREFIX
from llm_perf_opt.core.run_lock import LOCK_FILE
from llm_perf_opt.core.sealing import split_seal
from llm_perf_opt.labs.study.parquet_store import MANIFEST, read_manifest
from scripts.campaigns.hostile_files import quiet
from scripts.campaigns.verbs import CONFIG, Ended, start_child, wait_for

DECLARED: dict[str, dict[str, Any]] = {  # two studies of one name
    "first": {"devices": ["h100-sxm"]},
    "other": {"devices": ["l40s"], "prices": {"l40s": 1.5}},
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
        """No results."""
        shutil.rmtree(self.results, ignore_errors=True)

    def parts(self) -> dict[str, bytes]:
        """Every part that has its name, by its path."""
        return {str(file): file.read_bytes() for file in sorted(self.results.rglob("part-*.parquet"))}

    def state(self) -> dict[str, bytes]:
        """What the study is made of now, with the identities of its runs left out: equal where every bit is."""
        listed = next(self.results.rglob(MANIFEST))
        raw = listed.read_bytes()
        files = [part.file for part in read_manifest(raw).parts.values()]
        found = {name: (listed.parent / name).read_bytes() for name in files if (listed.parent / name).is_file()}
        found[MANIFEST] = split_seal(raw)[0]
        plain = {_plain(name.encode()).decode(): content for name, content in found.items()}
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
        grid = {"models": ["models/*"], "workload": {"global_batch": 2, "context": 4}}
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
    """It must succeed."""
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
        yield "the result is not that of an undisturbed run, bit for bit"
