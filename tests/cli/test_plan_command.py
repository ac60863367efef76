"""`plan` as a user runs it: the answer on stdout, progress and the next command on stderr, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.api.test_plans import folder


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder(tmp_path / "tiny"))
    words = ("plan", model, "--devices", "2x h100-sxm", "--prompt-tokens", "8", "--global-batch", "2")
    code, shown, said = call(monkeypatch, capsys, *words)
    assert code == 0
    assert " on 2x h100-sxm, best plan " in shown.splitlines()[0]
    assert "Best plan for 2x h100-sxm" in shown.splitlines()
    assert "Plan 1 of 4: tp2" in said
    code, shown, _ = call(monkeypatch, capsys, *words, "--max-plans", "1", "--json")
    assert code == 0
    assert [table["title"] for table in json.loads(shown)["tables"]] == ["Best plan for 2x h100-sxm", "Plans"]
    code, _, said = call(monkeypatch, capsys, *words, "--max-plans", "1", "--out", str(tmp_path / "plans.html"))
    assert code == 0
    assert "Decode step by plan" in (tmp_path / "plans.html").read_text()


@pytest.mark.parametrize(
    ("devices", "said"), [("12x h100-sxm", "no whole number of nodes"), ("8x nothing-known", "nothing-known")]
)
def test_a_cluster_that_is_not_known_is_refused_before_any_work(
    devices: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, found = call(monkeypatch, capsys, "plan", str(folder(tmp_path / "tiny")), "--devices", devices)
    assert (code, shown) == (2, "")
    assert said in found
    assert "Plan 1" not in found
