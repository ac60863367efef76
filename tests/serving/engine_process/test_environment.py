"""Which Python is taken for vLLM's, in which order, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llm_perf_opt.cli.app import app
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.serving.engine_process.environment import (
    ENGINES,
    SGLANG,
    VLLM,
    EngineEnvironment,
    EngineRecipe,
    find,
    version_in,
)


def python_that_says(path: Path, words: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {words}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for engine in ENGINES.values():
        monkeypatch.delenv(engine.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", str(python_that_says(tmp_path / "own" / "python", "")))


@pytest.mark.usefixtures("_empty_cache")
def test_the_variable_goes_before_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python_that_says(VLLM.default_folder() / "bin" / "python", "0.31.0")
    assert find().version == "0.31.0"
    named = python_that_says(tmp_path / "named", "0.32.0+cpu")
    monkeypatch.setenv(VLLM.variable, str(named))
    assert find() == EngineEnvironment(python=named, version="0.32.0+cpu")
    assert find().release == "0.32.0"


@pytest.mark.usefixtures("_empty_cache")
def test_this_python_is_taken_where_it_has_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(python_that_says(tmp_path / "both", "0.32.0")))
    assert find().python == tmp_path / "both"


@pytest.mark.usefixtures("_empty_cache")
def test_where_there_is_none_the_command_that_makes_it_is_named() -> None:
    with pytest.raises(PerfOptError) as caught:
        find()
    assert VLLM.make_it in caught.value.fix
    assert str(VLLM.default_folder()) in caught.value.why


@pytest.mark.usefixtures("_empty_cache")
def test_a_variable_that_names_a_python_without_vllm_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python_that_says(VLLM.default_folder() / "bin" / "python", "0.32.0")
    monkeypatch.setenv(VLLM.variable, str(python_that_says(tmp_path / "bare", "")))
    with pytest.raises(UsageError, match=VLLM.variable):
        find()


def test_what_is_no_program_has_no_version(tmp_path: Path) -> None:
    assert version_in(tmp_path / "nothing") is None
    (tmp_path / "text").write_text("not a program")
    assert version_in(tmp_path / "text") is None


@pytest.mark.usefixtures("_empty_cache")
def test_each_engine_has_a_folder_and_a_variable_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python_that_says(VLLM.default_folder() / "bin" / "python", "0.32.0")
    with pytest.raises(PerfOptError, match="no SGLang"):
        find(SGLANG)
    named = python_that_says(tmp_path / "named", "0.5.23")
    monkeypatch.setenv(SGLANG.variable, str(named))
    assert find(SGLANG) == EngineEnvironment(python=named, version="0.5.23", engine=SGLANG)
    assert find().version == "0.32.0"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_the_command_that_makes_it_exists(engine: EngineRecipe) -> None:
    program, *words = engine.make_it.split()
    assert program == "llm-perf-opt"
    shown = CliRunner().invoke(app, [*words, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "--folder" in shown.output
