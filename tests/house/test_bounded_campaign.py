"""The campaign of work without end: a slice of it finds nothing, and each check in it finds what is planted."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
from scripts.campaigns import bounded_work
from scripts.campaigns.bounded_work import MEMORY, OPS, ROW, SECONDS, Case, bounded, cases, faults, message_faults

pytest.importorskip("transformers", reason="some of the models are folders")

ROOT = Path(__file__).parents[2]
ONE_CASE = """
import json, sys
from pathlib import Path
from scripts.campaigns.bounded_work import bounded, cases
(case,) = (one for one in cases(Path(sys.argv[2])) if f"{one.row}: {one.name}" == sys.argv[1])
print(json.dumps(bounded(case)))
"""
ONE_THAT_DIES = """
import json, os
from scripts.campaigns.bounded_work import OPS, ROW, Case, bounded
print(json.dumps(bounded(Case(row=ROW[2], name="made", run=lambda: os._exit(9), option=OPS))))
"""
GOOD = "error: The phase ran 10 ops.\n  why: the limit; stopped in module a of b, decode, after 1 s\n  fix: max_ops=100"


def made(run: Callable[[], str], option: str | None = OPS, *, is_stopped: bool = True) -> Case:
    return Case(row=ROW[2], name="made", run=run, option=option, is_stopped=is_stopped)


def apart(code: str, *words: str) -> list[str]:
    """What a new process finds: a fork of this one has the locks of threads that other tests left, not the threads."""
    command = [sys.executable, "-c", code, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=ROOT)
    found: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {f"{case.row}: {case.name}": case for case in cases(tmp_path_factory.mktemp("cases"))}


def test_there_is_a_case_for_each_way_and_each_quick_one_is_known(known: dict[str, Case]) -> None:
    names = {case.name for case in known.values()}
    assert names >= bounded_work.QUICK
    assert {case.row for case in known.values()} == set(ROW)
    assert {case.option for case in known.values()} == {OPS, SECONDS, MEMORY, None}
    for word in ("10^6 layers", "10^9 decode", "99x99 crops", "10^9 prompt", "batch of 10^9", "10^12", "10^7 experts"):
        assert any(word in name for name in names), word
    for verb in ("trace", "cost", "report", "on a device", "export", "pages", "profile", "hooks"):
        assert any(verb in case.name for case in known.values() if case.row == ROW[1]), verb


@pytest.mark.parametrize(
    "name",
    [
        "absurd numbers, Python: 99x99 crops, weightless",
        "endless code, Python: ops, --max-ops, hooks",
        "endless code, Python: a Python loop, --max-seconds, weightless",
        "endless code, Python: exponential recursion of modules, --max-ops, weightless",
    ],
)
def test_work_without_end_is_ended(tmp_path: Path, name: str) -> None:
    assert apart(ONE_CASE, name, str(tmp_path)) == []


def test_what_nothing_stops_is_killed_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_work, "PATIENCE_S", 0.5)

    def endless() -> str:
        while True:
            time.sleep(0.1)

    assert bounded(made(endless)) == ["nothing stopped it within 0 s"]


def test_work_that_is_done_is_found() -> None:
    assert list(faults(made(lambda: ""))) == ["nothing refused or stopped it"]


def test_a_process_that_dies_is_found() -> None:
    assert apart(ONE_THAT_DIES) == ["the process ended without a word"]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (GOOD, ""),
        ("Traceback (most recent call last):", "no message"),
        (GOOD.replace("max_ops=", "less"), "the fix does not name max_ops="),
        (GOOD.replace("stopped in", "it was in"), "does not say what was being done"),
    ],
)
def test_a_message_that_lacks_something_is_found(message: str, found: str) -> None:
    faults_found = list(message_faults(made(str), message))
    assert faults_found == [] if not found else found in faults_found[0]


@pytest.fixture
def plain_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def test_a_process_that_is_not_clean_is_found(plain_dtype: None) -> None:
    def leaves() -> str:
        torch.set_default_dtype(torch.float64)
        return GOOD

    assert any(found.startswith("default dtype") for found in faults(made(leaves)))


def test_the_limits_hold_for_calls_of_modules_too_where_nobody_sees_ops() -> None:
    class Twice(nn.Module):
        def __init__(self, levels: int) -> None:
            super().__init__()
            self.below: nn.Module = Twice(levels - 1) if levels else nn.Identity()

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(self.below(self.below(values)))

    with pytest.raises(PerfOptError, match="The phase ran 100 module calls"), lpo.limits(max_ops=100):
        lpo.trace(Twice(40), (torch.zeros(1),), tracer="hooks")


def test_a_folder_of_endless_code_is_written_as_transformers_reads_it(tmp_path: Path) -> None:
    from scripts.campaigns.endless_models import write_folder

    folder = write_folder(tmp_path / "model", "ops")
    with (
        bounded_work._own_caches(tmp_path),
        pytest.raises(PerfOptError, match="The phase ran 3,000 ops") as stopped,
        lpo.limits(max_ops=3000),
    ):
        lpo.trace(folder, trust_remote_code=True)
    assert "looking for its inputs, after" in str(stopped.value)
