"""Which tests and page commands a gate runs: what is cheap, what a change reaches, and a slice of the rest.

The long gate runs everything. The gate of a landing runs

- every test and command that is cheap or new;
- a slice of the expensive ones: a test belongs to one of five slices by its name, and the number in `.ci/landing`,
  which every landing raises, says which is due, so that five landings run them all;
- of the other slices what the change reaches by imports, the nearest first (a changed test, then what imports a
  changed module, ...), as far as a budget of CPU seconds allows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

SLICES = 5
CHEAP_S = 0.5  # CPU seconds of a test that runs in every gate
REACHED_S = 240.0  # CPU seconds for tests of other slices that a change reaches
QUICK_S = 180.0  # CPU seconds of the tests of `.ci/run quick`
LANDING = ".ci/landing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of pytest needs to know of its gate."""

    is_long: bool = False
    left_out: frozenset[str] = frozenset()  # tests by node
    record: str = ""  # the file that keeps seconds by test
    notes: tuple[str, ...] = ()  # lines of the closing table
    took: Mapping[str, float] = field(default_factory=dict)  # seconds of the parts before
    failed: tuple[str, ...] = ()  # of these parts: the gate fails whatever its tests say

    def wants(self, node: str) -> bool:
        return node not in self.left_out


def write_plan(plan: Plan, file: Path) -> None:
    file.write_text(json.dumps({**asdict(plan), "left_out": sorted(plan.left_out)}), "utf-8")


def read_plan(file: Path) -> Plan:
    kept = json.loads(file.read_text("utf-8"))
    lists = {"left_out": frozenset(kept["left_out"]), "notes": tuple(kept["notes"]), "failed": tuple(kept["failed"])}
    return Plan(**{**kept, **lists})


def slice_of(name: str) -> int:
    """The slice that a test or a command belongs to: by its name alone, so that it stays there."""
    return zlib.crc32(name.encode()) % SLICES


def landing(root: Path) -> int:
    return int((root / LANDING).read_text("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Items of a gate: those that run in any case, and what is left to later landings."""

    due: tuple[str, ...]
    reached: tuple[str, ...]
    left: tuple[str, ...]


def choose(seconds: Mapping[str, float], distance: Mapping[str, int], *, number: int, budget_s: float) -> Choice:
    """Divide expensive items, each with its seconds and its distance from the change (absent: not reached)."""
    due = {name for name in seconds if slice_of(name) == number % SLICES}
    reached = nearest({name: seconds[name] for name in seconds.keys() - due}, distance, budget_s)
    left = seconds.keys() - due - set(reached)
    return Choice(due=tuple(sorted(due)), reached=tuple(sorted(reached)), left=tuple(sorted(left)))


def nearest(seconds: Mapping[str, float], distance: Mapping[str, int], budget_s: float) -> list[str]:
    """What a change reaches, the nearest first and of equally near ones the cheapest, until the budget is spent."""
    chosen, spent = [], 0.0
    for name in sorted(seconds.keys() & distance.keys(), key=lambda name: (distance[name], seconds[name], name)):
        if spent + seconds[name] <= budget_s:
            spent += seconds[name]
            chosen.append(name)
    return chosen


def expensive(tests: Mapping[str, float]) -> dict[str, float]:
    return {node: seconds for node, seconds in tests.items() if seconds > CHEAP_S}


def distances_of_tests(nodes: Iterable[str], reached: Mapping[str, int], changed: Iterable[str] = ()) -> dict[str, int]:
    """The distance of a test is that of its file; one whose parameters name a data file that changed is nearest.

    A folder `ORG--NAME` of the catalogue is named `ORG/NAME` by tests.
    """
    data = [Path(file) for file in changed if not file.endswith(".py")]
    names = {name.replace("--", "/") for file in data for name in (file.stem, file.parent.name) if len(name) > 6}
    distances: dict[str, int] = {}
    for node in nodes:
        file, _, test = node.partition("::")
        if file in reached:
            parameters = test.partition("[")[2]
            distances[node] = 0 if any(name in parameters for name in names) else reached[file]
    return distances


def distances_of_commands(lines: Iterable[str], reached: Mapping[str, int]) -> dict[str, int]:
    """A command is as far away as the file of its verb."""
    distances: dict[str, int] = {}
    for line in lines:
        _, _, words = line.partition("llm-perf-opt ")
        verb = words.split()[0] if words.split() else ""
        file = f"src/llm_perf_opt/cli/{verb}_command.py"
        if file in reached:
            distances[line] = reached[file]
    return distances
