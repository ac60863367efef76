"""How long each test and each command of the pages takes: kept in the repository, refreshed by the long gate.

    python -m scripts.gate durations             the most expensive rooms, files, tests and commands
    python -m scripts.gate durations RECORD      take over what a run recorded (`.ci/long` says where its record is)

Seconds are CPU seconds of the test and of the processes that it started and waited for, so a busy machine changes
them little. Tests below a tenth of a second are kept as one sum for their file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

KEPT_FROM_S = 0.1
FILE = "tests/durations.json"
SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """CPU seconds by test and by command of a page; the commit that the long gate ran on."""

    commit: str = ""
    tests: Mapping[str, float] = field(default_factory=dict)  # node -> seconds, those that count
    small: Mapping[str, float] = field(default_factory=dict)  # file -> seconds of all its other tests
    commands: Mapping[str, float] = field(default_factory=dict)  # command line of a page -> seconds

    def by_file(self) -> Counter[str]:
        """File -> seconds of all its tests."""
        files: Counter[str] = Counter(self.small)
        for node, seconds in self.tests.items():
            files[node.partition("::")[0]] += seconds  # type: ignore[assignment]
        return files


def read(root: Path) -> Durations:
    file = root / FILE
    if not file.exists():
        return Durations()
    kept = json.loads(file.read_text("utf-8"))
    tests = {f"{path}::{name}": seconds for path, names in kept["tests"].items() for name, seconds in names.items()}
    return Durations(commit=kept["commit"], tests=tests, small=kept["small"], commands=kept["commands"])


def write(root: Path, durations: Durations) -> None:
    by_file: dict[str, dict[str, float]] = {}
    for node, seconds in sorted(durations.tests.items()):
        path, _, name = node.partition("::")
        by_file.setdefault(path, {})[name] = seconds
    kept = {
        "commit": durations.commit,
        "commands": dict(sorted(durations.commands.items())),
        "small": dict(sorted(durations.small.items())),
        "tests": by_file,
    }
    (root / FILE).write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")


def from_record(tests: Mapping[str, float], commands: Mapping[str, float], commit: str) -> Durations:
    """What is kept of a run: whoever takes long by name, the rest as a sum for each file."""
    small: Counter[str] = Counter()
    for node, seconds in tests.items():
        if seconds < KEPT_FROM_S:
            small[node.partition("::")[0]] += seconds
    return Durations(
        commit=commit,
        tests={node: round(seconds, 2) for node, seconds in tests.items() if seconds >= KEPT_FROM_S},
        small={path: round(seconds, 2) for path, seconds in small.items()},
        commands={line: round(seconds, 1) for line, seconds in commands.items()},
    )


def most_expensive(durations: Durations) -> list[str]:
    """Tables of rooms, files, tests and commands, the slowest first."""
    files = durations.by_file()
    rooms: Counter[str] = Counter()
    for path, seconds in files.items():
        rooms["/".join(Path(path).parts[:2])] += seconds
    lines = [f"all tests: {files.total():,.0f} s of CPU; all commands: {sum(durations.commands.values()):,.0f} s"]
    for title, table in (
        ("rooms", rooms),
        ("files", files),
        ("tests", Counter(durations.tests)),
        ("commands", Counter(durations.commands)),
    ):
        lines += ["", f"{title}, seconds of CPU"]
        lines += [f"{seconds:8.1f}  {name}" for name, seconds in table.most_common(SHOWN)]
    return lines
