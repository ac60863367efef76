"""The check from nothing: which cases it has, and that it names every one that did not run. No vLLM is needed here."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.serving_replay import recorded_runs
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.core.plugins import MODELS
from scripts import vllm_end_to_end as check

DOCS = Path(__file__).parents[3] / "docs"
CATALOGUE = Path(check.capacity.__code__.co_filename).parents[1] / "models" / "huggingface" / "catalogue"


def answered(output_tokens: int = check.REQUESTS * check.OUTPUT, blocks: int = 10) -> Any:
    outcome = SimpleNamespace(output_tokens=output_tokens)
    return SimpleNamespace(best=SimpleNamespace(outcome=outcome), engine={"cache_blocks": blocks})


def test_every_attention_kind_has_a_case() -> None:
    assert {kind for case in check.CASES for kind in case.kinds} == set(check.KINDS)


@pytest.mark.parametrize("page", ["serving-times.md", "serving-replay.md"])
def test_every_model_that_an_accuracy_page_counts_has_a_case(page: str) -> None:
    counted = set(re.findall(r"^\| model (\S+) \|", (DOCS / "evidence" / page).read_text(), re.MULTILINE))
    assert len(counted) >= 10
    assert counted <= {case.family for case in check.CASES}


def test_every_recorded_run_has_a_case_of_its_model() -> None:
    assert {model for model, _, _ in recorded_runs._RUNS.values()} <= {case.family for case in check.CASES}


def test_models_and_devices_of_the_cases_are_known() -> None:
    for case in check.CASES:
        assert case.model in MODELS.names() or (CATALOGUE / case.model.replace("/", "--")).is_dir()
        cluster = parse_cluster(case.devices)
        assert case.asked.get("tp", 1) * case.asked.get("attention_dp", 1) == cluster.count


def test_what_did_not_run_is_named_with_its_reason_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(model: str, *_: object, **__: object) -> Any:
        if "gpt-oss-20b" in model:
            raise PerfOptError("vLLM could not do this job.", why="no such kernel", fix="none")
        return answered(output_tokens=5) if "Mamba" in model or "mamba" in model else answered()

    failed = check.run(check.CASES, ask)
    assert failed == {
        "openai/gpt-oss-20b": "vLLM could not do this job. no such kernel",
        "state-spaces/mamba2-2.7b": "5 of 48 tokens were generated",
    }
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(check.CASES)
    assert sum(line.endswith(", ok") for line in lines) == len(check.CASES) - 2


def test_an_engine_without_a_cache_is_no_answer() -> None:
    assert check.problem(answered()) is None
    assert check.problem(answered(blocks=0)) == "vLLM tells no blocks of its cache"


def test_an_environment_is_taken_made_and_kept_or_made_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Path] = []

    def make(folder: Path) -> str:
        made.append(folder)
        folder.mkdir(parents=True)
        return "0"

    monkeypatch.setattr(check, "make", make)
    with check.environment(None, tmp_path / "python") as python:
        assert python == tmp_path / "python"
    assert made == []
    with check.environment(tmp_path / "kept", None) as python:
        assert python == tmp_path / "kept" / "bin" / "python"
    with check.environment(None, None) as python:
        assert python == made[1] / "bin" / "python"
        assert made[1].is_dir()
    assert (made[0].is_dir(), made[1].exists()) == (True, False)
