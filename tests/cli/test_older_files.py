"""Call graphs of older scripts on the command line: every verb answers, or says in one error why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run

DIALECTS = Path(__file__).parents[1] / "core" / "callgraph" / "dialects"
TORCHLENS = DIALECTS / "torchlens" / "dsocr-call-graph-torchlens.json"
FILES = sorted(file for file in DIALECTS.rglob("*.json") if "runtime" not in file.name)


@pytest.mark.parametrize("format_name", ["text", "markdown", "json", "dot", "mermaid", "svg", "html", "model-explorer"])
def test_graph_draws_it_in_every_format(run: Run, tmp_path: Path, format_name: str) -> None:
    out = tmp_path / "graph.out"
    code, _, err = run("graph", TORCHLENS, "--format", format_name, "--out", out)
    assert (code, out.exists()) == (0, True), err
    text = out.read_text()
    assert ("@ .blocks" if format_name == "text" else "sam_model.blocks") in text
    assert "loops read from names and counts" in text


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_graph_shows_loops_and_what_is_not_known(run: Run, file: Path) -> None:
    code, out, _ = run("graph", file, "--format", "text")
    assert code == 0
    assert "for 24" in out
    assert "parfor 6-8 of 8" in out
    assert "Unknown, since the file has none" in out
    assert "0 FLOP" not in out


def test_a_folder_of_an_older_run_is_a_trace(run: Run, tmp_path: Path) -> None:
    shutil.copytree(TORCHLENS.parent, tmp_path / "run")
    (tmp_path / "run" / "dsocr-callgraph-grouped.json").write_text("[]")
    code, out, _ = run("graph", tmp_path / "run", "--format", "text", "--verbose")
    assert code == 0
    assert "Runtime: 1 image, 4 crops, decoder depth 4, which the structure confirms." in out


def test_compare_sets_two_dialects_side_by_side(run: Run) -> None:
    code, out, _ = run("compare", TORCHLENS, DIALECTS / "bare-tensors.json", "--json")
    assert code == 0
    (stages, *_) = json.loads(out)["tables"]
    assert [(row["calls_a"], row["calls_b"], row["flops_a"]) for row in stages["rows"]] == [(298, 298, None)]


@pytest.mark.parametrize(
    "words", [["report"], ["cost"], ["trace", "--device", "h100-sxm"], ["cost", "--strict"], ["report", "--json"]]
)
def test_what_needs_ops_says_so_in_one_error(run: Run, words: list[str]) -> None:
    code, out, err = run(words[0], TORCHLENS, *words[1:])
    assert (code, out) == (1, "")
    assert err.startswith("error: The trace holds no module calls.")
    assert "only graph and compare can work with totals alone" in err


@pytest.mark.parametrize("words", [["graph"], ["cost"], ["report"], ["compare", TORCHLENS]])
def test_json_that_is_no_call_graph_is_refused(run: Run, tmp_path: Path, words: list[str]) -> None:
    file = tmp_path / "random.json"
    file.write_text('{"hello": [1, 2, 3]}')
    code, out, err = run(*words, file)
    assert (code, out) == (1, "")
    assert "malformed at schema_version" in err
    assert str(file) in err
