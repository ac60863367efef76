"""Every verb on a pipe: the first three lines answer, no line is wider than 100 columns, all of it is one screen."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main
from llm_perf_opt.core.callgraph import write_callgraph
from tests.api.test_join import FORWARD, recording
from tests.api.test_ranks_by_hand import folder
from tests.costs.small_run import small_run
from tests.sweeps.studies.made_studies import tiny_study

PAGE, SCREEN, ANSWER = 100, 50, 3
Shown = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What a command prints on stdout, which is no terminal here."""

    def call(*words: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert not end.value.code, err
        return out

    return call


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("answer")
    lpo.trace("deepseek-ocr-tiny", out=place / "run")
    return place / "run"


def answer_of(out: str) -> list[str]:
    """The lines before the first empty one; a line that is set in goes on with the one before."""
    first = out.split("\n\n")[0].split("\n")
    return [line for line in first if not line.startswith("  ")]


def check(out: str, patterns: Sequence[str]) -> None:
    lines = out.splitlines()
    assert max(map(len, lines)) <= PAGE
    assert len(lines) <= SCREEN
    assert 1 <= len(answer_of(out)) <= ANSWER
    text = " ".join(out.split("\n\n")[0].split())
    assert [pattern for pattern in patterns if not re.search(pattern, text)] == [], text
    assert "Drawn in the format" not in out


OF_A_TRACE = {
    "graph": (["graph", "RUN"], [r"46\.5 MFLOP", r"Most FLOPs: ImageEncoderViT 69 %"]),
    "cost": (["cost", "RUN"], [r"46\.6 MFLOP as written", r"Most FLOPs: sam 69 %", "counted, closed-form agree"]),
    "report": (["report", "RUN"], [r"46\.6 MFLOP", "Every op has a price"]),
    "report on a device": (
        ["report", "RUN", "--gpus", "l4"],
        [
            "^The traced code: .*, eager PyTorch, .* fits",
            r"TTFT .* ms",
            "TPOT",
            r"tokens/s",
            "No server figure. A saved trace holds no model",
        ],
    ),
    "advise": (
        ["advise", "RUN", "--device", "l4"],
        [
            "1 x 105 tokens in, 500 out, eager PyTorch on l4: .* with an engine; lower bound",
            "Most of it:",
            "First: serve",
        ],
    ),
    "trace on a device": (
        ["trace", "RUN", "--device", "l4"],
        ["on l4, eager PyTorch, 1 x 105 tokens, bfloat16: fits", "TTFT", "TPOT", "tokens/s", "--execution fused"],
    ),
    "trace on a device, fused": (
        ["trace", "RUN", "--device", "l4", "--execution", "fused"],
        [r"engine kernels \(fused, CUDA graphs\)", "TPOT"],
    ),
    "what if": (
        ["trace", "RUN", "--device", "l4", "--what-if", "attention"],
        ["prefill on NVIDIA L4, by the data sheet: eager"],
    ),
    "compare": (["compare", "RUN", "RUN"], ["agree in everything that both record", r"46\.6 MFLOP in both"]),
}


@pytest.mark.parametrize("name", OF_A_TRACE)
def test_a_question_to_a_trace_is_answered_first(name: str, traced: Path, shown: Shown) -> None:
    words, patterns = OF_A_TRACE[name]
    check(shown(*(str(traced) if word == "RUN" else word for word in words)), patterns)


OF_NOTHING = {
    "models": (["models"], ["models are known by name", "Next: llm-perf-opt trace"]),
    "doctor": (["doctor"], ["Everything that a trace needs is installed"]),
    "devices list": (["devices", "list"], [r"\d\d devices are known"]),
    "devices show": (["devices", "show", "l4"], [r"NVIDIA L4: bf16 121 TFLOP/s, .* 300 GB/s, 22\.5 GiB"]),
    "devices cluster": (["devices", "cluster", "2x8 h100-sxm"], ["16 devices", r"all-reduce of 1\.00 GiB"]),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_what_is_known_is_answered_first(name: str, shown: Shown) -> None:
    words, patterns = OF_NOTHING[name]
    check(shown(*words), patterns)


OF_A_MODEL = {
    "trace": (["trace"], [r"46\.6 MFLOP and 12\.7 MiB moved", "most bytes: sam 54 %", "calls are as expected"]),
    "pages": (
        ["sweep", "--page", "64x64,A4@150dpi", "--gpus", "l4"],
        ["a page takes", r"On NVIDIA L4, engine kernels .* the prefill takes"],
    ),
    "export": (["export", "--check", "export", "--part", "projector"], [r"1 part: torch\.export 1", "refuses none"]),
    "sweep": (
        ["sweep", "--users", "1,2", "--input", "512..600", "--gpus", "l4"],
        [
            r"decode, \+1 sequence: .*FLOP",
            r"On NVIDIA L4, engine kernels .*, the largest batch: context 512",
            "every point is proven",
        ],
    ),
}


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_a_question_to_a_model_is_answered_first(name: str, shown: Shown) -> None:
    (verb, *options), patterns = OF_A_MODEL[name]
    check(shown(verb, "deepseek-ocr-tiny", *options), patterns)


def test_a_join_is_answered_first(tmp_path: Path, shown: Shown) -> None:
    write_callgraph(small_run(phase="prefill"), tmp_path / "prefill.callgraph.json", overwrite=False)
    out = shown("join", tmp_path / "prefill.callgraph.json", recording(tmp_path, FORWARD))
    check(out, ["Attributed: 100 % of 165 us", "Reached: ", "Longest: "])


def test_a_fleet_is_answered_first(tmp_path: Path, shown: Shown) -> None:
    words = ("--gpus", "2x h100-sxm", "--input", "8", "--output", "4", "--users", "2")
    patterns = [r"2 x h100-sxm \(.*, vLLM\) serves 2 users", "TTFT", "TPOT", "requests/s"]
    check(shown("serve", folder(tmp_path / "tiny"), *words), patterns)


def test_a_study_and_a_question_are_answered_first(tmp_path: Path, shown: Shown) -> None:
    file = tiny_study(tmp_path, 1, deployments={"plan": ["one device"], "weights": ["checkpoint"]})
    words = ("--out", tmp_path / "results", "--workers", "1")
    check(shown("study", file, *words), [r"Study \S+: 2 points, 2 computed, 0 reused, 0 failed"])
    check(shown("ask", tmp_path / "results"), [r"summary: \d+ rows? from 1 study", "First: "])


def test_a_profile_is_answered_first(tmp_path: Path, shown: Shown) -> None:
    words = ("model=deepseek-ocr-tiny", "workload.image=40x40", "workload.max_new_tokens=2", "run=quick")
    rest = ("profiler=off", "static_analysis=off", f"run.folder={tmp_path / 'run'}")
    check(shown("profile", *words, *rest), ["a page .* ms", "TTFT", "TPOT", "pages/s", "pages/day", "Bottleneck: "])


def test_verbose_has_all_tables_and_the_short_form_says_what_it_left_out(traced: Path, shown: Shown) -> None:
    short, whole = (shown("trace", traced, "--device", "l4", *more) for more in ((), ("--verbose",)))
    titles = [table["title"] for table in json.loads(shown("trace", traced, "--device", "l4", "--json"))["tables"]]
    assert [title for title in titles if title not in " ".join(whole.split())] == []
    assert max(map(len, whole.splitlines())) <= PAGE
    left_out = [title for title in titles if title not in short.partition("Left out:")[0]]
    assert left_out
    assert f"Left out: {len(left_out)} table" in short
    assert "--verbose shows all." in " ".join(short.split())


def test_the_times_of_the_first_lines_are_those_of_the_stages(traced: Path, shown: Shown) -> None:
    """TTFT is the sum of all stages before the decode, TPOT the decode step, tokens/s one sequence over it."""
    tables = json.loads(shown("trace", traced, "--device", "l4", "--json"))["tables"]
    stages = {row["stage"]: row for row in tables[0]["rows"]}
    ttft = sum(row["expected_seconds"] for name, row in stages.items() if name != "decode") * 1e3
    tpot = stages["decode"]["expected_seconds"] * 1e3
    line = answer_of(shown("trace", traced, "--device", "l4"))[1]
    found = re.search(r"TTFT ([\d.]+) ms .* TPOT ([\d.]+) ms .*, (\d+) tokens/s, (\d+) pages/s \(prefill only\)", line)
    assert found is not None, line
    expected = [ttft, tpot, 1e3 / tpot, 1e3 / ttft]
    assert [float(word) for word in found.groups()] == [pytest.approx(value, rel=0.01) for value in expected]
