"""What a gate would run for a change, as JSON: with `warm_python`, all that is asked of `scripts.gate`.

    python -m scripts.planted.chosen run | quick | all LOGS FILE ...

For each FILE, as if it were the one that changed: test files with their distance from it (null: not reached), tests
that are left out, and the commands of the other parts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from scripts.gate.__main__ import Gate, quick_tests
from scripts.gate.parts import Part
from scripts.gate.warm_python import PRELOADED, warm_python

__all__ = ["PRELOADED", "warm_python"]
CAMPAIGN = (sys.executable, "scripts/fault_campaign.py", "--quick", "--jobs", "1")


def chosen(gate: Gate, word: str, changed: str) -> dict[str, Any]:
    gate.changed, gate.reached = [changed], gate.graph.distances([changed])
    files = [file for file in gate.graph.files if file.startswith("tests/") and Path(file).name.startswith("test_")]
    left_out: Collection[str] = ()
    lint = gate.lint()
    if word == "quick":
        files, left_out, _ = quick_tests(gate)
        parts = [part for part in lint if part.name in ("ruff", "format", "types")]
    else:
        left_out = gate.tests()[0] if word == "run" else ()
        commands, _ = gate.page_commands()
        if word == "all":
            commands = Part(name=commands.name, command=commands.command[:4], seconds=commands.seconds)
        parts = [*lint, commands, Part(name="faults", command=CAMPAIGN, seconds=90)]
    return {
        "files": {file: gate.reached.get(file) for file in files},
        "left_out": sorted(left_out),
        "parts": {part.name: list(part.command) for part in parts},
    }


def main() -> None:
    word, logs, *files = sys.argv[1:]
    gate = Gate(Path(logs))
    by_file = {}
    for file in files:
        gate.logs = Path(logs) / file.replace("/", "-")  # a list of page commands for each
        gate.logs.mkdir(parents=True, exist_ok=True)
        by_file[file] = chosen(gate, word, file)
    print(json.dumps(by_file))


if __name__ == "__main__":
    main()
