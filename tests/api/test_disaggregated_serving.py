"""`serve` with prefill and decode on separate GPUs, and with adapters: the answer of a small model, and refusals."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main as command
from llm_perf_opt.core.errors import UsageError
from tests.api.tiny_folders import llama_folder, mixtral_folder

pytestmark = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no tables of measured kernels")
ASKED: dict[str, Any] = {"input": 300, "output": 60, "users": 24, "slo": "ttft=2s,tpot=40ms"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module")
def answer(llama: Path) -> lpo.ServeAnswer:
    return lpo.serve(llama, "h100-sxm", disaggregate=True, **ASKED)


def test_the_answer_names_both_sides_and_what_one_kind_of_gpus_would_cost(answer: lpo.ServeAnswer) -> None:
    best = answer.best
    assert best is not None and best.prefill is not None
    assert best.gpus == best.replicas + best.prefill.gpus == 2
    lines = answer.report().answer
    assert lines[0].startswith("2 x h100-sxm (prefill 1 x one device, decode 1 x one device, vLLM) serves 24 users")
    assert lines[2] == (
        "With prefill and decode on the same GPUs the best, 1 x h100-sxm (one device, vLLM), costs 50 % less."
    )
    assert "on the link to the decode workers" in " ".join(note.text for note in answer.report().notes)


def test_both_sides_share_the_cost(answer: lpo.ServeAnswer) -> None:
    best = answer.best
    assert best is not None and best.cost_per_million_input is not None and best.cost_per_million_output is not None
    per_s = best.cost_per_million_input * best.requests_per_s * 300 + best.cost_per_million_output * (
        best.output_tokens_per_s
    )
    assert per_s / 1e6 * 3600 == pytest.approx(best.cost_per_hour)


def test_a_fixed_number_of_gpus_is_divided(llama: Path) -> None:
    best = lpo.serve(llama, "4x h100-sxm", disaggregate=True, tp=1, input=300, output=60).best
    assert best is not None and best.prefill is not None
    assert best.gpus <= 4


@pytest.mark.parametrize(
    ("gpus", "more", "said"),
    [
        ("1x h100-sxm", {"disaggregate": True}, "too few GPUs"),
        ("h100-sxm", {"disaggregate": True, "replay": True}, "do not disaggregate"),
        ("h100-sxm", {"lora": "4x8", "replay": True}, "do not have adapters"),
        ("h100-sxm", {"lora": "4x8", "engine": "sglang"}, "vLLM alone"),
    ],
)
def test_what_does_not_go_together_is_said(llama: Path, gpus: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lpo.serve(llama, gpus, **ASKED, **more)


def test_there_are_no_files_for_two_kinds_of_workers(
    answer: lpo.ServeAnswer,
    llama: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="no files that start"):
        answer.save_deployment(tmp_path / "deploy")
    words = ["serve", str(llama), "--gpus", "h100-sxm", "--input", "300", "--disaggregate", "--write", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words])
    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == 2
    assert "--write and --disaggregate exclude each other" in capsys.readouterr().err


def test_adapters_take_cache_and_time_and_are_in_the_command(llama: Path, tmp_path: Path) -> None:
    plain, adapted = (lpo.serve(llama, "l4", lora=lora, **ASKED) for lora in (None, "64x64"))
    assert plain.best is not None and adapted.best is not None
    sizes = [each.best.candidate.replica.considered.cache_tokens for each in (plain, adapted) if each.best]
    assert sizes[0] > sizes[1]
    assert plain.best.tpot.expected_s < adapted.best.tpot.expected_s
    assert "LoRA adapters" in adapted.step_seconds
    adapted.save_deployment(tmp_path / "deploy")
    script = (tmp_path / "deploy" / "serve.sh").read_text(encoding="utf-8").replace("\\\n", "")
    assert " ".join(script.split()).count("--enable-lora --max-loras 64 --max-lora-rank 64") == 1


def test_experts_have_no_adapters_yet(tmp_path: Path) -> None:
    folder = mixtral_folder(tmp_path / "tiny-mixtral")
    with pytest.raises(UsageError, match="routed experts"):
        lpo.serve(folder, "l4", lora="4x8", **ASKED)
