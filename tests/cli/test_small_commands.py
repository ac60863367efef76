from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import pytest

from llm_perf_opt import __version__
from llm_perf_opt.api import catalogue
from llm_perf_opt.core.plugins import MODELS
from tests.cli.conftest import Run


def test_models_lists_every_name_and_how_to_trace_a_folder(run: Run) -> None:
    code, out, _ = run("models")
    assert code == 0
    assert [name for name in MODELS.names() if f"llm-perf-opt trace {name}" not in out] == []
    assert "llm-perf-opt trace DIR" in out


def test_models_as_json(run: Run) -> None:
    _, out, _ = run("models", "--json")
    assert [row["model"] for row in json.loads(out)["tables"][0]["rows"]] == list(MODELS.names())


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"llm-perf-opt {__version__}\n", "")


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "llm_perf_opt", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"llm-perf-opt {__version__}\n", "")


def test_no_verb_shows_the_verbs(run: Run) -> None:
    code, out, err = run()
    assert code == 2
    assert "doctor" in out + err


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    def version(distribution: str) -> str:
        found = versions.get(distribution.replace("-", "_"), "1.0")
        if found is None:
            raise metadata.PackageNotFoundError(distribution)
        return found

    monkeypatch.setattr(catalogue.metadata, "version", version)


def verdicts(out: str) -> dict[str, str]:
    return {row["part"]: row["verdict"] for row in json.loads(out)["tables"][0]["rows"]}


def test_doctor_is_content_when_all_is_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, torch="2.13.1+cu130")
    code, out, _ = run("doctor", "--json")
    assert code == 0
    assert set(verdicts(out).values()) == {"ok"}


def test_doctor_names_an_untested_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, torch="2.14.0")
    code, out, _ = run("doctor", "--json")
    assert code == 0
    assert verdicts(out)["torch"] == "not tested; tested with 2.13"
    assert any("pip install 'llm-perf-opt[trace]'" in note["text"] for note in json.loads(out)["notes"])


def test_doctor_fails_when_something_needed_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, msgspec=None)
    code, out, _ = run("doctor")
    assert code == 1
    assert "missing" in out
    assert "pip install 'msgspec'" in out


def test_doctor_without_torch_says_what_can_be_asked_and_how_to_trace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, torch=None)
    code, out, _ = run("doctor")
    assert code == 0
    assert "Saved traces and the models of the catalogue can be used" in out
    assert "pip install 'llm-perf-opt[trace]'" in out


def test_doctor_accepts_missing_extras_and_says_how_to_get_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, torch="2.13.0", transformers=None)
    code, out, _ = run("doctor")
    assert code == 0
    assert "pip install 'llm-perf-opt[trace]'" in out
