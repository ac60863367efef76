"""Faults as data, and a copy of the tree in which one at a time is planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GIT = ("git", "-c", "user.name=planted", "-c", "user.email=planted@localhost", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`before`, which occurs once in the file, becomes `after`; `breaks` says what is wrong then.

    `ask_first` is who is likely to find it, so that a search is short; what it says is never believed.
    """

    number: int
    room: str
    file: str
    before: str
    after: str
    breaks: str
    ask_first: str = ""

    def problem(self, tree: Path) -> str | None:
        """Why it cannot be planted; None: it can."""
        path = tree / self.file
        times = path.read_text("utf-8").count(self.before) if path.is_file() else 0
        return None if times == 1 else f"fault {self.number}: {self.file} holds its text {times} times"


def read_faults() -> list[Fault]:
    rows = tomllib.loads((Path(__file__).parent / "faults.toml").read_text("utf-8"))["faults"]
    return [Fault(number=number, **fields) for number, fields in enumerate(rows, start=1)]


class Scratch:
    """A copy of what git knows or would add, with one commit: the base from which a gate counts changes."""

    def __init__(self, place: Path) -> None:
        self.tree, self.logs = place / "tree", place / "logs"
        self.logs.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, set(listed.stdout.split("\0"))):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.tree / name)
        for words in (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "-m", "base")):
            subprocess.run([*_GIT, *words], cwd=self.tree, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of commands in the copy: its own code before any other, and the base of the change."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "NO_MKDOCS_2_WARNING": "1"}
        code = {"PATH": path, "PYTHONPATH": f"{self.tree / 'src'}{os.pathsep}{self.tree}", "GATE_BASE": "HEAD"}
        return {**os.environ, **quiet, **code}

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """With one fault in it; afterwards as it was."""
        path = self.tree / fault.file
        text = path.read_text("utf-8")
        path.write_text(text.replace(fault.before, fault.after), "utf-8")
        try:
            yield
        finally:
            path.write_text(text, "utf-8")
