from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import write_callgraph
from tests.api.test_join import FORWARD, recording
from tests.cli.conftest import Run
from tests.costs.small_run import small_run


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for phase in ("prefill", "decode"):
        write_callgraph(small_run(phase=phase), folder / f"{phase}.callgraph.json", overwrite=False)
    return folder


def test_the_answer_is_on_stdout_and_nothing_on_stderr(run: Run, traced: Path, tmp_path: Path) -> None:
    code, out, err = run("join", traced, recording(tmp_path, FORWARD), "--strict", "--verbose")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "Attributed: 100 % of 165 us of kernel time, in 1 forward."
    assert out.splitlines()[4] == "small, prefill: recorded kernels on the traced ops"
    assert "kernel name in order        7       165 us  100 %" in out


def test_strict_fails_where_kernels_are_left_over(run: Run, traced: Path, tmp_path: Path) -> None:
    file = recording(tmp_path, [*FORWARD, ("frobnicate", 165)])
    assert run("join", traced, file)[0] == 0
    code, out, err = run("join", traced, file, "--strict", "--verbose")
    assert code == 1
    assert "frobnicate" in out
    assert "50.0 % of its time is attributed" in err


def test_phase_device_and_json(run: Run, traced: Path, tmp_path: Path) -> None:
    options = ("--phase", "decode", "--device", "h200-sxm", "--json")
    code, out, _ = run("join", traced, recording(tmp_path, FORWARD), *options)
    assert code == 0
    document = json.loads(out)
    assert document["title"].startswith("small, decode")
    assert "H200" in document["answer"][1]


def test_a_page_is_written_once(run: Run, traced: Path, tmp_path: Path) -> None:
    page = tmp_path / "join.html"
    code, out, err = run("join", traced, recording(tmp_path, FORWARD), "--out", page)
    assert (code, out) == (0, "")
    assert f"Wrote {page}\nNext: llm-perf-opt trace " in err
    assert run("join", traced, recording(tmp_path, FORWARD), "--out", page)[0] == 1
    assert run("join", traced, recording(tmp_path, FORWARD), "--out", page, "--force")[0] == 0


def test_what_is_no_recording_is_named(run: Run, traced: Path, tmp_path: Path) -> None:
    code, _, err = run("join", traced, traced / "prefill.callgraph.json")
    assert code == 2
    assert "is no Chrome trace of torch.profiler" in err
    code, _, err = run("join", traced, tmp_path / "missing.json")
    assert code == 2
    assert "There is no GPU recording at" in err
