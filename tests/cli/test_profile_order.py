"""`profile` refuses early what cannot succeed, analyses before it times, and finishes whatever fails later."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.api.profile_preparation import PageTraces
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.plugins import TRACERS
from llm_perf_opt.harness import environment
from llm_perf_opt.measurements.timed.timed_runs import PageRun, TimedRuns
from tests.cli.conftest import Run

SMALL = ("model=deepseek-ocr-tiny", "workload.image=40x40", "workload.max_new_tokens=2", "run=quick")
NO_PROFILER = "profiler=off"


WEIGHTLESS = TRACERS._entries["weightless"]


@pytest.fixture(autouse=True)
def real_tracer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of `run` follows no memory."""
    monkeypatch.setitem(TRACERS._entries, "weightless", WEIGHTLESS)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each page that is timed: the files that lie in the folder of the run by then."""
    seen: list[set[str]] = []
    measure = TimedRuns.measure

    def watched(self: TimedRuns, page: PageRun) -> Any:
        seen.append({file.name for file in FOLDERS[-1].iterdir()})
        return measure(self, page)

    monkeypatch.setattr(TimedRuns, "measure", watched)
    return seen


FOLDERS: list[Path] = []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    FOLDERS.append(tmp_path / "run")
    return FOLDERS[-1]


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text("utf-8"))


def test_the_static_analysis_is_written_before_the_first_timed_pass(
    run: Run, folder: Path, timed: list[set[str]]
) -> None:
    code, _, err = run("profile", *SMALL, NO_PROFILER, f"run.folder={folder}")
    assert code == 0, err
    assert [names & {"static_compute.json", "static_compute.md"} for names in timed] == [
        {"static_compute.json", "static_compute.md"}
    ]
    assert "# deepseek-ocr-tiny" in (folder / "static_compute.md").read_text("utf-8")


def test_the_table_of_fvcore_is_part_of_the_static_report(run: Run, folder: Path) -> None:
    pytest.importorskip("fvcore", reason="its table is what is asked for")
    code, _, err = run("profile", *SMALL, NO_PROFILER, "static_analysis=fvcore", f"run.folder={folder}")
    assert code == 0, err
    text = (folder / "static_compute.md").read_text("utf-8")
    assert "Table of fvcore, " in text
    table = text.partition("Table of fvcore, ")[2].partition("```text")[2].partition("```")[0]
    assert "#flops" in table  # the heading that fvcore itself prints


def test_a_source_that_there_is_not_is_wrong_usage(run: Run, folder: Path, timed: list[set[str]]) -> None:
    code, _, err = run("profile", *SMALL, "static_analysis.sources=counted+fvcor", f"run.folder={folder}")
    assert code == 2
    assert "did you mean 'fvcore'?" in err
    assert timed == []


@pytest.mark.parametrize("program", ["nsys", "ncu"])
def test_a_profiler_that_is_not_installed_ends_the_run_before_it_begins(
    run: Run, folder: Path, timed: list[set[str]], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, _, err = run("profile", *SMALL, f"profiler.nsight={program}", f"run.folder={folder}")
    assert code == 1
    assert f"{program} is not installed" in err
    assert timed == []
    assert not (folder / "request.json").exists()


def test_a_run_that_the_machine_cannot_hold_is_refused_with_both_figures(
    run: Run, folder: Path, timed: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("profile", *SMALL, NO_PROFILER, f"run.folder={folder}")
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 2**17)
    code, _, err = run(*words)
    assert code == 1
    assert "of host memory, and 128 KiB are free" in err
    assert "run.check_memory=false" in err
    assert timed == []
    code, _, err = run(*words, "run.check_memory=false")
    assert code == 0, err
    assert len(timed) == 1
    code, _, err = run(*words)  # the same run for all that is measured, and nothing is left to measure
    assert code == 0, err
    assert len(timed) == 1


def test_a_static_analysis_that_fails_is_a_line_of_the_report(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: PageTraces, workload: Any) -> None:
        raise PerfOptError("The model cannot be traced.", why="an op has no rule", fix="give one")

    monkeypatch.setattr(PageTraces, "memory", refuse)
    code, out, err = run("profile", *SMALL, NO_PROFILER, f"run.folder={folder}")
    assert code == 1
    assert "static analysis failed; the measured times are valid" in err
    line = "Failed: static analysis; its figures are missing. The model cannot be traced. an op has no rule"
    assert line in (folder / "report.md").read_text("utf-8")
    assert line in metrics(folder)["notes"]
    assert "Time by stage" in out
    assert {stage["flops"] for stage in metrics(folder)["stages"]} == {None}


def test_an_outside_profiler_that_fails_leaves_the_times(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 3\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    code, out, err = run("profile", *SMALL, NO_PROFILER, "profiler.nsight=nsys", f"run.folder={folder}")
    assert code == 1
    assert "nsys failed; the measured times are valid" in err
    assert "Failed: nsys; its figures are missing. nsys ended with 3. no driver" in metrics(folder)["notes"]
    assert "Time by stage" in out


def test_stacks_can_be_added_to_a_finished_run(run: Run, folder: Path, timed: list[set[str]]) -> None:
    words = ("profile", *SMALL, "static_analysis=off", f"run.folder={folder}")
    assert run(*words)[0] == 0
    assert "source" not in (folder / "operators.csv").read_text("utf-8").splitlines()[0]
    code, out, err = run(*words, "profiler.with_stack=true", "profiler.profile_memory=true", "--json")
    assert code == 0, err
    assert len(timed) == 1
    rows = list(csv.DictReader((folder / "operators.csv").open(encoding="utf-8")))
    assert any(row["source"].startswith("sam.py:") for row in rows)
    assert sum(int(row["self_allocated_bytes"]) for row in rows) > 0
    (table,) = [one for one in json.loads(out)["tables"] if {"stage", "operator"} <= one["rows"][0].keys()]
    assert list(table["rows"][0])[-2:] == ["allocated_bytes", "source"]
    before = (folder / "operators.csv").read_bytes()
    assert run(*words, "profiler.with_stack=true", "profiler.profile_memory=true")[0] == 0
    assert (folder / "operators.csv").read_bytes() == before  # read back, not measured again


def test_options_of_a_pass_that_is_off_are_refused(run: Run, folder: Path) -> None:
    code, _, err = run("profile", *SMALL, NO_PROFILER, "profiler.with_stack=true", f"run.folder={folder}")
    assert code == 2
    assert "profiler.with_stack cannot be recorded" in err
