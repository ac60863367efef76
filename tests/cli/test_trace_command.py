from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import read_callgraph
from tests.cli.conftest import Run
from tests.cli.stand_ins import FLOPS


def test_the_table_goes_to_stdout_and_the_talk_to_stderr(run: Run, tmp_path: Path) -> None:
    code, out, err = run("trace", "stand-in", "--out", tmp_path / "run")
    assert code == 0
    assert "head" in out
    assert "prints from its forward" not in out
    assert "prints from its forward" in err
    assert f"Wrote {tmp_path / 'run' / 'prefill.callgraph.json'}" in err
    assert err.splitlines()[-1] == f"Next: llm-perf-opt graph {tmp_path / 'run'} --out graph.html"


def test_one_file_per_phase_holds_what_ran(run: Run, tmp_path: Path) -> None:
    run("trace", "stand-in", "--out", tmp_path, "--routing", "one")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["decode.callgraph.json", "prefill.callgraph.json"]
    graph = read_callgraph(tmp_path / "decode.callgraph.json")
    assert graph.phase == "decode"
    assert graph.call_counts["head"] == 1
    assert graph.tracer == "stand-in, one"


def test_events_are_part_of_the_file(run: Run, tmp_path: Path) -> None:
    code, _, _ = run("trace", "stand-in", "--events", "--out", tmp_path)
    assert code == 0
    events = json.loads((tmp_path / "prefill.callgraph.json").read_text())["events"]
    assert events[0] == {"event": "enter", "path": "", "parent": None, "index": 0}
    assert {"event": "enter", "path": "head", "parent": ""}.items() <= events[1].items()
    assert len(read_callgraph(tmp_path / "prefill.callgraph.json").events) == len(events)
    code, out, err = run("trace", "stand-in", "--events")
    assert (code, out) == (2, "")
    assert "add --out DIR" in err


def test_without_out_nothing_is_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("trace", "stand-in")
    assert code == 0
    assert list(tmp_path.iterdir()) == []
    assert "The trace was not saved" in err


def test_json_holds_the_exact_flops(run: Run) -> None:
    _, out, _ = run("trace", "stand-in", "--json", "--decode-steps", "0")
    tables = json.loads(out)["tables"]
    assert [row["flops"] for row in tables[0]["rows"] if row["stage"] == "head"] == [FLOPS]
    assert tables[0]["total"]["flops"] == FLOPS


def test_report_prints_the_same_from_the_files_in_the_order_in_which_they_ran(run: Run, tmp_path: Path) -> None:
    _, traced, _ = run("trace", "stand-in", "--out", tmp_path, "--format", "markdown")
    code, again, _ = run("report", tmp_path, "--format", "markdown")
    assert code == 0
    assert again == traced


def test_an_existing_file_is_kept_unless_forced(run: Run, tmp_path: Path) -> None:
    run("trace", "stand-in", "--out", tmp_path)
    file = tmp_path / "prefill.callgraph.json"
    file.write_text("kept")
    code, out, err = run("trace", "stand-in", "--out", tmp_path)
    assert (code, out) == (1, "")
    assert str(file) in err
    assert "--force" in err
    assert file.read_text() == "kept"
    assert run("trace", "stand-in", "--out", tmp_path, "--force")[0] == 0
    assert read_callgraph(file).phase == "prefill"


def test_strict_fails_on_an_op_without_a_price_after_showing_the_table(run: Run) -> None:
    assert run("trace", "stand-in", "--mode", "odd")[0] == 0
    assert run("trace", "stand-in", "--strict")[0] == 0
    code, out, err = run("trace", "stand-in", "--mode", "odd", "--strict")
    assert code == 1
    assert "odd.scan" in out
    assert "2 ops have no price" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trace", "stand-on"], "Did you mean stand-in"),
        (["trcae", "stand-in"], "'trace'"),
        (["trace", "stand-in", "--format", "jsn"], "did you mean 'json'?"),
        (["trace", "stand-in", "--json", "--format", "text"], "contradict"),
        (["trace", "stand-in", "--crops", "2x3"], "it takes: prompt_tokens"),
        (["trace", "deepseek-ocr", "--crops", "2by3"], "like 2x3"),
        (["trace", "stand-in", "--crops", "2x3"], "The stand-in takes no crops"),
        (["trace", "stand-in", "--dtype", "float23"], "float32"),
        (["trace", "stand-in", "--decode-steps", "-1"], "--decode-steps"),
        (["trace", "qwen3-8bb"], "Did you mean Qwen/Qwen3-8B"),
        (["trace", "../no/such/"], "There is no folder '../no/such/'"),
        (["report", "."], "llm-perf-opt trace"),
        (["trace"], "MODEL_OR_TRACE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_2_with_the_remedy(
    words: list[str], hint: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert hint in err
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_made_is_our_failure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run("trace", "stand-in", "--out", tmp_path / "file")
    assert code == 1
    assert "fix: choose another --out" in err


def test_strict_fails_on_modules_that_ran_more_or_less_often_than_expected(run: Run) -> None:
    code, out, _ = run("trace", "stand-in", "--mode", "miscounted")
    assert code == 0
    assert "warning: prefill: heads: 3 expected (3 heads x 1 forward), 1 found." in out
    assert "Calls expected and found" in out
    code, _, err = run("trace", "stand-in", "--mode", "miscounted", "--strict")
    assert code == 1
    assert "Modules ran more or less often than expected: heads." in err
