"""What `doctor` says of vLLM: which one, whether it is a checked one, and how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.environment import VLLM, EngineEnvironment, EngineRecipe


def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> tuple[tuple[object, ...], list[str]]:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    monkeypatch.setenv(VLLM.variable, str(python))
    report = lpo.doctor().report()
    return report.tables[1].rows[0], [note.text for note in report.notes if note.text.startswith("vllm")]


def test_a_checked_version_needs_no_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row, notes = says(monkeypatch, tmp_path, "0.32.0+cpu")
    assert row == ("vllm", "0.32.0+cpu", str(tmp_path / "python"), "checked")
    assert notes == []


def test_another_version_is_named_beside_the_checked_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row, notes = says(monkeypatch, tmp_path, "0.22.1")
    assert row[-1] == "not checked"
    assert "0.32.0" in notes[0] and "but not 0.22.1" in notes[0]


def test_where_there_is_none_the_command_is_in_the_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row, notes = says(monkeypatch, tmp_path, "")
    assert row[1:] == ("-", "-", "optional, not installed")
    assert "llm-perf-opt engines install vllm" in notes[0]
    assert lpo.doctor().is_complete


def test_a_missing_engine_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(engine: EngineRecipe) -> EngineEnvironment:
        raise PerfOptError("There is none.", why="so", fix="make it")

    monkeypatch.setattr("llm_perf_opt.api.catalogue.find", nowhere)
    assert {found.problem for found in lpo.doctor().engines} == {"There is none. Make it"}
    assert [found.engine.name for found in lpo.doctor().engines] == ["vllm", "sglang"]
