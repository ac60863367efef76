from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.stand_ins import FLOPS


@pytest.fixture
def runs(run: Run, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two runs alike, and one with an op more in its head and another mode in its header."""
    for name, mode in (("a", "plain"), ("b", "plain"), ("odd", "odd")):
        assert run("trace", "stand-in", "--mode", mode, "--out", tmp_path / name)[0] == 0
    return tmp_path / "a", tmp_path / "b", tmp_path / "odd"


def test_runs_that_agree(run: Run, runs: tuple[Path, Path, Path]) -> None:
    code, out, err = run("compare", runs[0], runs[1], "--strict")
    assert (code, err) == (0, "")
    assert "The traces agree" in out


def test_an_unexplained_difference_fails_under_strict_alone(run: Run, runs: tuple[Path, Path, Path]) -> None:
    code, out, _ = run("compare", runs[0], runs[2], "--json")
    assert code == 0
    causes = next(table for table in json.loads(out)["tables"] if table["title"] == "Why they differ")
    assert {row["cause"] for row in causes["rows"]} == {"unexplained"}
    code, out, err = run("compare", runs[0], runs[2], "--strict")
    assert code == 1
    assert "head" in out
    assert "2 differences have no known cause." in err


def test_one_phase_of_two(run: Run, runs: tuple[Path, Path, Path]) -> None:
    code, _, err = run("compare", runs[0], runs[2], "--strict", "--phase", "decode")
    assert code == 1
    assert "1 difference has no known cause." in err


def test_two_files(run: Run, runs: tuple[Path, Path, Path]) -> None:
    code, out, _ = run("compare", runs[0] / "prefill.callgraph.json", runs[1] / "decode.callgraph.json")
    assert code == 0
    assert "prefill/decode" in out


def test_budgets_that_hold_and_one_that_does_not(run: Run, runs: tuple[Path, Path, Path]) -> None:
    held = ["--budget", "prefill.head.flops<=+1%", "--budget", f"total.flops=={2 * FLOPS}"]
    code, out, _ = run("compare", runs[0], runs[1], *held)
    assert code == 0
    assert out.count("holds") == 2
    code, out, err = run("compare", runs[0], runs[2], "--budget", "total.calls==", "--budget", "total.ops<=+10%")
    assert code == 3
    assert out.count("holds") == 1
    assert "violated" in out
    assert "total.ops<=+10%" in err


def test_a_figure_that_is_not_known_keeps_no_budget(run: Run, runs: tuple[Path, Path, Path]) -> None:
    """An op without a price may hide any number of FLOPs."""
    code, out, err = run("compare", runs[0], runs[2], "--budget", "flops<=1e30")
    assert code == 3
    assert "not known" in out
    assert "odd.scan.default" in out
    assert "flops<=1e30" in err


def test_times_on_a_device(run: Run, runs: tuple[Path, Path, Path]) -> None:
    words = ["--gpus", "h100-sxm", "--rates", "data-sheet", "--budget", "bound<=1ms", "--json"]
    code, out, _ = run("compare", runs[0], runs[1], *words)
    assert code == 0
    tables = {table["title"]: table["rows"] for table in json.loads(out)["tables"]}
    [row] = tables["Budgets on time"]
    assert row["limit_for_b_seconds"] == pytest.approx(1e-3)
    assert row["a_seconds"] == row["b_seconds"] > 0
    code, _, err = run("compare", runs[0], runs[1], "--budget", "bound<=1ms")
    assert code == 2
    assert "add --gpus NAME" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--budget", "prefill.head.flop<=1"], "did you mean 'flops'?"),
        (["--budget", "prefil.head.flops<=1"], "did you mean 'prefill.head'?"),
        (["--phase", "vision"], "prefill, decode"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(
    run: Run, runs: tuple[Path, Path, Path], words: list[str], hint: str
) -> None:
    code, out, err = run("compare", runs[0], runs[1], *words)
    assert (code, out) == (2, "")
    assert hint in err


def test_a_folder_with_neither_traces_nor_a_model(run: Run, tmp_path: Path) -> None:
    code, _, err = run("compare", tmp_path, tmp_path)
    assert code == 2
    assert "has no config.json" in err


def test_a_model_is_traced_and_a_trace_takes_no_workload(run: Run, runs: tuple[Path, Path, Path]) -> None:
    code, out, err = run("compare", runs[0], "stand-in", "--mode", "odd", "--budget", "total.ops<=+0")
    assert code == 3
    assert "violated" in out
    assert "total.ops<=+0" in err
    assert run("compare", "stand-in", "stand-in", "--strict")[0] == 0
    code, _, err = run("compare", runs[0], runs[1], "--mode", "odd")
    assert code == 2
    assert "A saved trace does not take --mode" in err


def test_a_budget_that_cannot_be_meant_is_refused_before_any_work(run: Run) -> None:
    code, _, err = run("compare", "stand-in", "stand-in", "--budget", "flops<=3ms")
    assert code == 2
    assert "Tracing" not in err


def test_a_broken_budget_is_no_failure_of_the_command(run: Run, runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Three ends of the same question: broken, not answered because a file is damaged, not a question."""
    damaged = tmp_path / "prefill.callgraph.json"
    damaged.write_text((runs[0] / "prefill.callgraph.json").read_text()[:-40])
    sides = (runs[0] / "prefill.callgraph.json", runs[2] / "prefill.callgraph.json")
    assert run("compare", *sides, "--budget", "ops<=+0")[0] == 3
    assert run("compare", sides[0], damaged, "--budget", "ops<=+0")[0] == 1
    assert run("compare", *sides, "--budget", "no budget")[0] == 2
