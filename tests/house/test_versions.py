"""The lowest versions come from pyproject.toml, and the smoke runs every verb and every extra."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main

from llm_perf_opt.cli.app import app
from scripts import lowest_versions, smoke_verbs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_every_dependency_and_extra_has_its_lowest_version() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [one for name, some in extras.items() if name not in ("all", "dev") for one in some]
    names = {re.split("[<>=]", requirement)[0] for requirement in [*PROJECT["dependencies"], *wanted]}
    lowest = lowest_versions.lowest_versions()
    assert lowest.keys() == names
    assert lowest["torch"] == "2.13"


def test_a_dependency_without_a_lower_bound_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(re.sub(r'"jinja2[^"]*"', '"jinja2"', text))
    with pytest.raises(SystemExit, match="jinja2: no lower bound"):
        lowest_versions.lowest_versions(tmp_path / "pyproject.toml")


def test_the_smoke_runs_every_verb_and_needs_every_extra() -> None:
    """All but Ray, which `all` leaves out: a test runs a cluster of it."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # the root command is a group
    assert {step.verb for step in smoke_verbs.STEPS} == set(commands)
    extras = {step.extra for step in smoke_verbs.STEPS if step.extra is not None}
    assert extras == PROJECT["optional-dependencies"].keys() - {"all", "dev", "ray"}


def test_the_smoke_tries_every_command_on_devices() -> None:
    devices = typer.main.get_command(app).commands["devices"].commands  # type: ignore[attr-defined]
    assert {step.command.split()[1] for step in smoke_verbs.STEPS if step.verb == "devices"} == set(devices)


def test_the_smoke_fails_on_a_wrong_answer_and_on_a_missing_pip_command(tmp_path: Path) -> None:
    """A stand-in for the interpreter prints what it is told; only the right exit code with the right text passes."""
    said = tmp_path / "python"

    def verdict(text: str, code: int, extras: str, step: smoke_verbs.Step) -> bool:
        stream = ">&2" if code else ""
        said.write_text(f"#!/bin/sh\ncat {stream} <<'END'\n{text}\nEND\nexit {code}\n")
        said.chmod(0o755)
        return smoke_verbs.problem_of(step, str(said), tmp_path, extras) is None

    step = smoke_verbs.Step("trace x", "decode", extra="trace")
    assert verdict("decode", 0, "all", step)
    assert not verdict("prefill", 0, "all", step)
    assert not verdict("decode", 1, "all", step)
    assert not verdict("decode; pip install 'llm-perf-opt[trace]'", 0, "all", step)
    assert verdict("decode; pip install 'llm-perf-opt[ray]'", 0, "all", step), "`all` leaves it out"
    assert verdict("pip install 'llm-perf-opt[trace]'", 1, "none", step)
    assert not verdict("pip install 'llm-perf-opt[png]'", 1, "none", step)
    assert not verdict("pip install 'llm-perf-opt[trace]'", 0, "none", step)
    refused = smoke_verbs.Step("trace some/unknown", r"no model named .*\n.*fix: ", code=2)
    assert verdict("There is no model named x\n  fix: y", 2, "light", refused)
    assert not verdict("There is no model named x\n  fix: y", 1, "light", refused)
    assert not verdict("There is no model", 2, "light", refused)


@pytest.mark.parametrize(("strict", "code"), [("", 0), ("1", 1)])
def test_a_python_that_is_not_installed_is_left_out_aloud(tmp_path: Path, strict: str, code: int) -> None:
    world = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "VERSIONS_STRICT": strict}
    command = ["bash", str(ROOT / "scripts" / "versions.sh"), "3.99"]
    ran = subprocess.run(command, env=world, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == code
    assert "3.99: LEFT OUT, no Python 3.99 was found" in ran.stderr
    assert "Not tried: 3.99." in ran.stderr
    assert "commands did what they should" not in ran.stdout
