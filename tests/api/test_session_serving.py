"""`serve` with sessions and host memory: the answer of a small model, its engine flags, and refusals."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.cli import main as command
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.hardware.links import host_link
from tests.api.tiny_folders import llama_folder

needs_tables = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="no tables of measured kernels")
ASKED: dict[str, Any] = {"input": 300, "output": 60, "users": 24}
SESSIONS = "turns=4,grow=100,think=5s"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@needs_tables
def test_the_answer_says_what_a_turn_finds(llama: Path) -> None:
    """Prompts of 300, 460, 620 and 780 tokens, of which 352, 512 and 672 were read before, in blocks of 16."""
    answer = lpo.serve(llama, "h100-sxm", sessions=SESSIONS, **ASKED)
    assert answer.best is not None and answer.best.state.reuse is not None
    assert "Each turn finds 384 of 540 prompt tokens in cache." in answer.answer[1]
    assert "Users think 5.00 s" in " ".join(note.text for note in answer.report().notes)
    state = answer.best.state
    assert answer.best.requests_per_s * (state.latency_s + 0.75 * 5) == pytest.approx(24)


@needs_tables
def test_host_memory_is_in_the_note_and_in_the_command(llama: Path, tmp_path: Path) -> None:
    answer = lpo.serve(llama, "h100-sxm", sessions=SESSIONS, kv_offload="64GiB", **ASKED)
    notes = " ".join(note.text for note in answer.report().notes)
    assert "over PCIe 5, 16 lanes, by its data sheet" in notes
    answer.save_deployment(tmp_path / "deploy")
    assert "--kv-offloading-size 64" in (tmp_path / "deploy" / "serve.sh").read_text(encoding="utf-8")


@needs_tables
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kv_offload": "64GiB"}, "kv_offload needs sessions"),
        ({"sessions": SESSIONS, "kv_offload": "64"}, "not an amount of host memory"),
        ({"sessions": SESSIONS, "disaggregate": True}, "sessions and disaggregate exclude"),
        ({"sessions": "turns=4"}, "not clear"),
    ],
)
def test_what_does_not_go_together_is_said(llama: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lpo.serve(llama, "h100-sxm", **ASKED, **more)


@pytest.mark.parametrize(
    ("device", "link"),
    [
        ("a100-sxm-80g", "pcie-4-x16"),
        ("h100-sxm", "pcie-5-x16"),
        ("gh200-96g", "nvlink-c2c"),
        ("gb300", "nvlink-c2c"),
    ],
)
def test_a_gpu_reaches_its_host_by_the_link_of_its_data_sheet(device: str, link: str) -> None:
    found = host_link(find_device(device))
    assert found is not None and found.id == link


def test_traffic_says_its_own_sessions(
    llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["serve", str(llama), "--gpus", "h100-sxm", "--traffic", "1/s prompt=9 output=9", "--sessions", SESSIONS]
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *words])
    with pytest.raises(SystemExit) as left:
        command()
    assert left.value.code == 2
    assert "--sessions and --traffic exclude each other" in capsys.readouterr().err
