"""The first command of the README, as a person runs it: a process of its own, the full-size model, exact figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.callgraph import read_callgraph

MAIN = "from llm_perf_opt.cli import main; main()"
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "

# Closed forms of the counts in tests/facts/deepseek_ocr/, eager attention, two FLOPs per multiply-add.
GLOBAL_VIEW = 1_139_967_033_344
CROP = 388_149_837_824
TOKEN = 1_148_192_256
TOKEN_PAIR = 61_440
TOKENS = 1 + 903 + 20  # the start token, a 1024 view with 2 x 3 crops, the default prompt


def run(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("traced") / "run"
    return out, run(MAIN, "trace", "deepseek-ocr", "--image", "1240x1754", "--out", out, "--json", "--strict")


@pytest.mark.slow
def test_the_first_command_gives_the_known_figures(traced: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = traced
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)["tables"][0]
    flops = {row["stage"]: row["flops"] for row in table["rows"]}
    assert flops["sam"] + flops["clip"] + flops["projector"] == GLOBAL_VIEW + 6 * CROP
    assert flops["prefill"] == TOKENS * TOKEN + TOKEN_PAIR * TOKENS**2
    assert flops["decode"] == TOKEN + TOKEN_PAIR * (TOKENS + 1)
    assert table["total"]["flops"] == sum(flops.values()) == 2 * table["total"]["macs"]
    assert table["total"]["parameters"] == 3_336_106_240
    assert table["total"]["unpriced_ops"] == 0


@pytest.mark.slow
def test_it_leaves_sound_files_and_says_so(traced: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = traced
    for phase in ("prefill", "decode"):
        file = out / f"{phase}.callgraph.json"
        assert f"Wrote {file}" in done.stderr
        assert read_callgraph(file).problems() == []
    assert done.stderr.splitlines()[-1] == f"Next: llm-perf-opt graph {out} --out graph.html"


@pytest.mark.slow
def test_the_files_are_read_where_torch_is_absent(traced: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, first = traced
    again = run(WITHOUT_TORCH + MAIN, "report", out, "--json")
    assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr


def test_a_model_without_torch_is_an_error_with_a_remedy() -> None:
    done = run(WITHOUT_TORCH + MAIN, "trace", "deepseek-ocr")
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch is not installed" in done.stderr
    assert "pip install 'llm-perf-opt[trace]'" in done.stderr
    assert "Traceback" not in done.stderr
