"""Who finds a fault: tests, the nearest first, then the other parts of a gate; and whether they pass without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.planted.pytest_plugin import FAILED, LEFT_OUT
from scripts.planted.scratch import Fault, Scratch

FIRST_CHUNK, LARGEST_CHUNK = 3, 48  # test files that one process runs; each chunk is twice the one before
STATIC = ("ruff", "format", "import rule", "docs")
COSTLY = ("types", "page commands")
LAST = ("faults",)
PASSED, NOT_THERE, NO_TESTS = 0, 4, 5  # exit codes of pytest
_FAR = 99
OWN_TEST = "tests/house/test_planted_faults.py"  # fails with every fault, since the text that it looks for is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`found_by` None: nobody; then `undecided` lists what was stopped because there was no time left."""

    number: int
    gate: str
    found_by: str | None
    seconds: float
    undecided: tuple[str, ...] = ()


class Search:
    """Looks for finders in one scratch copy, with one Python. `unsteady` are finders that fail without any fault."""

    def __init__(self, scratch: Scratch, python: str, gate: str, limit_s: float, nearest: int | None) -> None:
        self.scratch, self.python, self.gate = scratch, python, gate
        self.limit_s, self.nearest = limit_s, nearest
        self.unsteady: set[str] = set()
        self.plans: dict[str, Any] = {}  # changed file -> what the gate would run

    def plan(self, faults: Sequence[Fault]) -> None:
        """Ask the gate once for all faults: the imports of the tree are the same with each."""
        files = sorted({fault.file for fault in faults})
        words = [self.python, "-m", "scripts.planted.chosen", self.gate, str(self.scratch.logs), *files]
        done = subprocess.run(
            words, cwd=self.scratch.tree, env=self.scratch.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"The gate does not say what it would run:\n{done.stderr[-3000:]}")
        self.plans = json.loads(done.stdout)

    def find(self, fault: Fault) -> Outcome:
        """The first finder that passes without the fault."""
        began = time.monotonic()
        undecided: list[str] = []
        for finder in self._failing(fault, undecided):
            if self._passes_without(finder, fault):
                return Outcome(
                    number=fault.number, gate=self.gate, found_by=finder, seconds=round(time.monotonic() - began, 1)
                )
            self.unsteady.add(finder)
        seconds = round(time.monotonic() - began, 1)
        return Outcome(number=fault.number, gate=self.gate, found_by=None, seconds=seconds, undecided=tuple(undecided))

    def _failing(self, fault: Fault, undecided: list[str]) -> Iterator[str]:
        """Whatever fails, in the order in which it is cheapest to ask."""
        plan = self.plans[fault.file]
        files: Mapping[str, int | None] = {file: far for file, far in plan["files"].items() if file != OWN_TEST}
        parts = {name: _narrowed(name, command, fault) for name, command in plan["parts"].items()}
        if fault.ask_first.partition("::")[0] in files:
            yield from self._failing_tests(fault, [fault.ask_first], plan["left_out"], undecided)
        elif fault.ask_first in parts and self._part_fails(fault, fault.ask_first, parts[fault.ask_first], undecided):
            yield fault.ask_first
        order = sorted(files, key=lambda file: (_far(files[file]), -affinity(file, fault.file), file))
        if self.nearest is not None:
            yield from self._failing_tests(fault, order[: self.nearest], plan["left_out"], undecided)
            undecided.append(f"only {self.nearest} test files ran")
            return
        near = [file for file in order if files[file] is not None]
        house = [file for file in order if file not in near and file.startswith("tests/house/")]
        far = [file for file in order if file not in near and file not in house]
        for tests, names in ((near, STATIC), (house, COSTLY), (far, LAST)):
            yield from self._failing_tests(fault, tests, plan["left_out"], undecided)
            for name in names:
                if name in parts and self._part_fails(fault, name, parts[name], undecided):
                    yield name

    def _failing_tests(
        self, fault: Fault, files: Sequence[str], left_out: Sequence[str], undecided: list[str]
    ) -> Iterator[str]:
        end = time.monotonic() + self.limit_s
        for chunk in chunks(files):
            while True:
                with self.scratch.planted(fault):
                    failed = self._pytest(chunk, [*left_out, *self.unsteady], end - time.monotonic())
                if failed is None:
                    break
                yield failed
            if time.monotonic() > end:
                undecided.append(f"tests from {chunk[0]} on")
                return

    def _pytest(self, what: Sequence[str], left_out: Sequence[str], limit_s: float) -> str | None:
        """The node that fails first; None where none does, or not in time."""
        note, nodes = self.scratch.logs / "failed", self.scratch.logs / "left_out.json"
        note.unlink(missing_ok=True)
        nodes.write_text(json.dumps(list(left_out)), "utf-8")
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "scripts.planted.pytest_plugin",
            "--hypothesis-profile=ci",
        ]
        code = self._run([self.python, "-m", "pytest", *options, *what], limit_s, {FAILED: note, LEFT_OUT: nodes})
        if note.exists():
            return note.read_text("utf-8")
        if code == NOT_THERE:
            print(f"There is no {', '.join(what)}.", file=sys.stderr, flush=True)
        elif code not in (PASSED, NO_TESTS, None):
            sys.exit(f"pytest left with code {code}:\n{self._log.read_text('utf-8', 'replace')[-3000:]}")
        return None

    def _part_fails(self, fault: Fault, name: str, command: Sequence[str], undecided: list[str]) -> bool:
        if name in self.unsteady:
            return False
        with self.scratch.planted(fault):
            code = self._run(command, self.limit_s, {})
        if code is None:
            undecided.append(name)
        return bool(code)

    def _passes_without(self, finder: str, fault: Fault) -> bool:
        if "/" in finder:
            return self._pytest([finder], [], self.limit_s) is None
        command = self.plans[fault.file]["parts"][finder]
        return self._run(_narrowed(finder, command, fault), self.limit_s, {}) == 0

    @property
    def _log(self) -> Path:
        return self.scratch.logs / "last.log"

    def _run(self, command: Sequence[str], limit_s: float, more: Mapping[str, Path]) -> int | None:
        """The exit code; None: stopped at the limit, with everything that it started."""
        environment = {**self.scratch.environment, **{name: str(path) for name, path in more.items()}}
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.scratch.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return process.wait(max(limit_s, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def _far(distance: int | None) -> int:
    return _FAR if distance is None else distance


def affinity(test: str, changed: str) -> int:
    """How many words the paths of a test file and of a changed file share; pages are the business of the house."""
    shared = _words(test) & _words(changed)
    return len(shared) + (10 if changed.endswith(".md") and test.startswith("tests/house/") else 0)


def _words(path: str) -> set[str]:
    return set(re.split(r"[/_.-]+", path.lower())) - {"src", "tests", "test", "py", "llm", "perf", "opt"}


def chunks(files: Sequence[str]) -> Iterator[Sequence[str]]:
    """A few files first, then more and more at once."""
    start, size = 0, FIRST_CHUNK
    while start < len(files):
        yield files[start : start + size]
        start, size = start + size, min(2 * size, LARGEST_CHUNK)


def _narrowed(name: str, command: Sequence[str], fault: Fault) -> list[str]:
    """Of the commands of pages those of the page that changed, where one did: the others are as they were."""
    is_page = name == "page commands" and fault.file.endswith(".md")
    return [*command[:4], fault.file, *command[4:]] if is_page else list(command)
