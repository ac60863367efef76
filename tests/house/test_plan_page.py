"""`docs/evidence/plan.md`: every point of the original plan names a command or a test that shows it, and each of
them exists.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

from llm_perf_opt.cli.app import app

ROOT = Path(__file__).parents[2]
ROWS = [
    tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
    for line in (ROOT / "docs/evidence/plan.md").read_text().splitlines()
    if re.match(r"\| \d{3}-\d+ \|", line)
]
TESTS = sorted({name for row in ROWS for name in re.findall(r"`(tests/[^`]+::[^`]+)`", row[3])})
COMMANDS = sorted({text for row in ROWS for text in re.findall(r"`llm-perf-opt ([^`]+)`", row[3])})


def test_all_142_points_are_there_once() -> None:
    assert Counter(row[0].split("-")[0] for row in ROWS) == {"000": 21, "001": 31, "002": 21, "003": 44, "004": 25}
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_each_point_has_a_state_and_none_that_failed_works() -> None:
    states = {row[0]: row[2].partition(":")[0] for row in ROWS}
    assert set(states.values()) == {"works", "differs", "replayed"}
    failed = [row[0] for row in ROWS if len(row) > 4 and re.search(r"failed|exit code", row[4])]
    assert failed == []


def test_each_point_names_a_command_or_a_test() -> None:
    named = r"`(tests/[^`]+::|llm-perf-opt |mypy )[^`]+`"
    assert [row[0] for row in ROWS if not re.search(named, row[3])] == []


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_that_is_named_has_its_options(text: str) -> None:
    verb, *words = text.split()
    group: Any = typer.main.get_command(app)
    options = {name for parameter in group.commands[verb].params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
