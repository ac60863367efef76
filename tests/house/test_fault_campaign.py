"""The fault campaign: a slice of it finds nothing, and each check in it finds what is planted."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.pages import put_between
from scripts import fault_campaign
from scripts.campaigns.plain_world import changes, describe, look
from scripts.campaigns.rows import Row
from scripts.campaigns.run_faults import Subject, faulted_forward, leak_row, own_row, traced
from scripts.campaigns.stand_in import ERRORS, PLAN, inputs, make_target, plain_model


@pytest.fixture(autouse=True)
def no_fault_left() -> Iterator[None]:
    yield
    PLAN.set(0, RuntimeError)


def subject(tracer: str) -> Subject:
    model = None if tracer == "weightless" else plain_model()
    return Subject(name=tracer, run=lambda: traced(tracer, make_target(model)), module=model, is_traced=True)


@pytest.mark.parametrize("tracer", ["weightless", "hooks"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_a_fault_in_a_forward_leaves_nothing(tracer: str, error: type[BaseException]) -> None:
    tried = subject(tracer)
    PLAN.set(0, RuntimeError)
    first = tried.run()
    at = random.Random(f"{tracer} {error}").randint(1, PLAN.passed)
    assert list(faulted_forward(tried, at, error, first)) == []


@pytest.mark.parametrize("tracer", ["weightless", "hooks"])
def test_faults_in_our_own_functions_leave_nothing(tracer: str) -> None:
    row = own_row(subject(tracer), 12, seed=1)
    assert row.findings == []
    assert row.tried == 12


def test_a_run_that_leaves_something_is_found() -> None:
    def leaves() -> str:
        try:
            return traced("weightless", make_target())
        except ValueError:
            return ""
        finally:
            torch.set_default_dtype(torch.float64)

    first = traced("weightless", make_target())
    try:
        found = list(faulted_forward(Subject(name="leaves", run=leaves), 5, ValueError, first))
    finally:
        torch.set_default_dtype(torch.float32)
    assert any(finding.startswith("default dtype") for finding in found)


def test_an_error_that_is_hidden_is_found() -> None:
    def hides() -> str:
        try:
            return traced("weightless", make_target())
        except Exception:  # noqa: BLE001  that is the mistake
            return "nothing happened"

    first = traced("weightless", make_target())
    found = list(faulted_forward(Subject(name="hides", run=hides, is_traced=True), 5, ValueError, first))
    assert found == ["the caller got 'nothing happened'"]


def test_a_changed_module_is_seen() -> None:
    model = plain_model()
    before = describe(model)
    hook = model.vision.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert describe(model) != before
    hook.remove()
    assert describe(model) == before
    with torch.no_grad():
        model.head.bias = nn.Parameter(torch.zeros(32))  # type: ignore[union-attr]
    assert describe(model) != before


def test_a_changed_world_is_seen() -> None:
    before = look()
    stdout = sys.stdout
    sys.stdout = sys.stderr
    torch.nn.init.ones_, plain = (lambda tensor: tensor), torch.nn.init.ones_
    torch.rand(1)
    found = list(changes(before, look()))
    sys.stdout, torch.nn.init.ones_ = stdout, plain
    assert {line.partition(":")[0] for line in found} == {
        "torch.nn.init.ones_ is another object",
        "stdout",
        "random numbers of torch",
    }


def test_a_leak_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.campaigns.run_faults.WARM_UP", 1)
    kept: list[object] = []
    row = leak_row("leaks", lambda: kept.append({"one": inputs()}), 50)
    assert len(row.findings) == 1
    assert "objects more after 50 traces" in row.findings[0]


def test_every_campaign_of_the_page_is_found_in_a_file() -> None:
    page = Path(__file__).parents[2] / "docs" / "evidence" / "reliability.md"
    assert set(fault_campaign.names()) == set(fault_campaign.lines_on(page))
    for name, stem in fault_campaign.homes().items():
        assert f"def campaign_{name}(" in (fault_campaign.CAMPAIGNS / f"{stem}.py").read_text("utf-8")


def test_the_table_adds_up_and_goes_between_the_markers(tmp_path: Path) -> None:
    rows = [Row(what="x", tried=1200), Row(what="y", tried=30, findings=["bad"])]
    text = fault_campaign.table(fault_campaign.lines_of({"a": fault_campaign.Campaign(rows=rows, seconds=61.4)}))
    assert text.splitlines()[2:] == [
        "| `a` | x | 1,200 | 0 | 61 |",
        "|  | y | 30 | 1 |  |",
        "| **all** | | **1,230** | **1** | **61** |",
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{fault_campaign.START}\nold\n{fault_campaign.END}\nafter\n")
    put_between(page, fault_campaign.START, fault_campaign.END, text)
    again = fault_campaign.Campaign(rows=rows[:1], seconds=2.0)
    kept = {**fault_campaign.lines_on(page), **fault_campaign.lines_of({"b": again})}
    assert list(kept) == ["a", "b"] and fault_campaign.table({"a": kept["a"]}) == text
    assert page.read_text() == f"before\n{fault_campaign.START}\n{text}\n{fault_campaign.END}\nafter\n"


def test_a_campaign_that_breaks_off_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_campaign, "_environment", lambda: {"PATH": "", "PYTHONPATH": ""})
    campaign = fault_campaign.run_campaign("no_such_campaign", quick=True, seed=0)
    assert campaign.rows[0].findings[0].startswith("broke off: ")


def test_a_campaign_without_an_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fault_campaign.LIMIT_S, True, 0)
    campaign = fault_campaign.run_campaign("memory", quick=True, seed=0)
    assert campaign.rows[0].findings == ["broke off: not over after 0 s"]
    assert campaign.cpu_seconds is None


def test_long_campaigns_begin_first_and_the_table_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def run(name: str, **_: object) -> fault_campaign.Campaign:
        begun.append(name)
        return fault_campaign.Campaign(rows=[Row(what="x", tried=1)], seconds=1.0)

    monkeypatch.setattr(fault_campaign, "run_campaign", run)
    names = sorted(fault_campaign.names())
    assert list(fault_campaign.run_all(names, sampled=set(names), seed=0, jobs=1)) == names
    assert tuple(begun[: len(fault_campaign.LONGEST)]) == fault_campaign.LONGEST


def test_five_landings_sample_every_campaign_and_three_long_gates_run_each_whole() -> None:
    names = set(fault_campaign.names())
    assert {name for number in range(44, 49) for name in fault_campaign.due_samples(number)} == names
    assert set().union(*(fault_campaign.due_whole(number) for number in range(44, 47))) == names
    assert all(fault_campaign.due_whole(number) < names for number in range(44, 47))


def test_rows_of_some_kinds_of_files_take_their_places_among_the_others() -> None:
    before = [
        "| `hostile_files` | image (no seal): 1 refused | 60 | 0 | 900 |",
        "|  | weights (no seal): 2 refused | 60 | 0 |  |",
    ]
    found = [
        "| `hostile_files` | weights (no seal): 3 refused | 70 | 1 | 5 |",
        "|  | function (sealed): 4 refused | 70 | 0 |  |",
    ]
    assert fault_campaign.with_kinds(before, found) == [
        before[0],
        "|  | weights (no seal): 3 refused | 70 | 1 |  |",
        "|  | function (sealed): 4 refused | 70 | 0 |  |",
    ]
    assert "| **all** | | **200** | **1** | **900** |" in fault_campaign.table(
        {"hostile_files": fault_campaign.with_kinds(before, found)}
    )
