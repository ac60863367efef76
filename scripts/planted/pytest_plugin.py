"""`pytest -p scripts.planted.pytest_plugin`: leaves tests out, runs slow ones last, and notes the first that fails."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

LEFT_OUT = "PLANTED_LEFT_OUT"  # environment variable: a JSON list of nodes
FAILED = "PLANTED_FAILED"  # and the file that gets the node


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    yield
    left_out = set(json.loads(Path(os.environ[LEFT_OUT]).read_text("utf-8")))
    wanted = [item for item in items if item.nodeid not in left_out]
    items[:] = sorted(wanted, key=_is_slow)


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("slow", "breadth"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    file = Path(os.environ[FAILED])
    if report.failed and not file.exists():
        file.write_text(report.nodeid, "utf-8")
