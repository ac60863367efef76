"""What a gate asks of pytest: which tests run, which reasons to skip count, what each test took, and a closing table.

    pytest -p scripts.gate.pytest_plugin --gate-plan FILE

FILE is what `selection.write_plan` left. Without the option nothing changes.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from scripts.gate import durations
from scripts.gate.parts import table_of
from scripts.gate.selection import Plan, read_plan
from scripts.gate.skips import is_allowed, reasons

_CPU = "cpu_seconds"
_SLOW_S = 3.0  # of a file, from which on it has its place by its seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gate-plan", metavar="FILE", help="the tests of a gate, and what it keeps of them")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--gate-plan")
    if file:
        is_controller = not hasattr(config, "workerinput")
        config.pluginmanager.register(Gate(read_plan(Path(file)), is_controller=is_controller))


class Gate:
    """Registered in the controller and in every worker; all of them choose the same tests."""

    def __init__(self, plan: Plan, *, is_controller: bool) -> None:
        self.plan, self.is_controller = plan, is_controller
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if not self.plan.wants(item.nodeid)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if self.plan.wants(item.nodeid)]
        places = places_of_files(items, durations.read(config.rootpath).by_file())
        items.sort(key=lambda item: places[item.path.relative_to(config.rootpath).as_posix()])

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_BEGAN] = _cpu_seconds()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, None]:
        outcome = yield
        report = outcome.get_result()
        report.user_properties = [*report.user_properties, (_CPU, _cpu_seconds() - item.stash[_BEGAN])]
        self._refuse_silent_skip(report)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, None]:
        outcome = yield
        self._refuse_silent_skip(outcome.get_result())

    def _refuse_silent_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """A skip for a reason that is not on the list is a failure, with the list."""
        if report.outcome != "skipped" or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not is_allowed(reason, is_long=self.plan.is_long):
            named = ", ".join(reasons(is_long=self.plan.is_long))
            report.outcome = "failed"
            report.longrepr = f"Skipped in a gate: {reason}\nOnly these reasons count there: {named}."

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_controller:
            self.seconds[report.nodeid] = dict(report.user_properties).get(_CPU, 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_controller and self.plan.record:
            Path(self.plan.record).write_text(json.dumps(self.seconds), "utf-8")
        if self.plan.failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took = {**self.plan.took, "tests": time.monotonic() - self.began}
        terminalreporter.section("times by part, slowest first")
        for line in [*self.plan.notes, *table_of(took)]:
            terminalreporter.write_line(line)
        if self.plan.failed:
            terminalreporter.write_line(f"FAILED before the tests: {', '.join(self.plan.failed)}; their logs are above")


_BEGAN = pytest.StashKey[float]()


def places_of_files(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> dict[str, int]:
    """File -> its place in an order of two halves that each begin with what takes longest.

    pytest-xdist gives one half to each of two workers. Files stay whole, since their tests share what they set up.
    """
    sizes = Counter(item.nodeid.partition("::")[0] for item in items)
    longest = sorted(sizes, key=lambda file: (-seconds.get(file, 0.0), file))
    slow = [file for file in longest if seconds.get(file, 0.0) > _SLOW_S]
    first, second = slow[::2], slow[1::2]
    for file in longest[len(slow) :]:
        is_first = sum(sizes[place] for place in first) < len(items) // 2
        (first if is_first else second).append(file)
    return {file: place for place, file in enumerate((*first, *second))}


def _cpu_seconds() -> float:
    return sum(os.times()[:4])
