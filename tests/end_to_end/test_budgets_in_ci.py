"""The recipes for CI, run as they are shipped: the steps of the workflow, and the hook by pre-commit itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "ci"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}
HOOK = ["model", "perf/baseline", "--prompt-tokens", "8", "--", "--budget", "flops<=+0%", "--budget", "cache<=+0"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(place: Path, *words: str) -> None:
    names = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *names, *words], cwd=place, check=True, capture_output=True)


def commit(place: Path, **changed: Any) -> None:
    (place / "model").mkdir(exist_ok=True)
    (place / "model" / "config.json").write_text(json.dumps({**CONFIG, **changed}, indent=1))
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "change")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Someone's repository with a model in it, and as `origin` the state that a pull request starts from."""
    place, origin = tmp_path / "theirs", tmp_path / "origin.git"
    place.mkdir()
    git(place, "init", "--quiet")
    commit(place)
    git(place, "clone", "--quiet", "--bare", str(place), str(origin))
    git(place, "remote", "add", "origin", str(origin))
    git(place, "fetch", "--quiet", "origin")
    return place


def environment(tmp_path: Path) -> dict[str, str]:
    """With the command of this tree on the path."""
    commands = tmp_path / "commands"
    commands.mkdir(exist_ok=True)
    command = commands / "llm-perf-opt"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m llm_perf_opt "$@"\n')
    command.chmod(0o755)
    paths = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return {**os.environ, **paths}


def workflow() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="the extra `study` is not installed")
    found: dict[str, Any] = yaml.safe_load((RECIPES / "perf-budget.yml").read_text("utf-8"))
    return found


def run_workflow(repository: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
    """Each step that is a script, as the runner runs it, but for the installation; ends behind one that fails."""
    told = workflow()
    runner = {"RUNNER_TEMP": str(tmp_path / "runner"), "GITHUB_BASE_REF": "main"}
    runner |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    (tmp_path / "runner").mkdir()
    for step in told["jobs"]["budget"]["steps"]:
        if "run" not in step or step["name"] == "install":
            continue
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        variables = {**environment(tmp_path), **told["env"], **runner}
        done = subprocess.run(words, cwd=repository, env=variables, capture_output=True, text=True, timeout=600)
        yield step["name"], done
        if done.returncode:
            return


@pytest.mark.slow
def test_the_workflow_passes_where_nothing_changed(repository: Path, tmp_path: Path) -> None:
    commit(repository)
    done = dict(run_workflow(repository, tmp_path))
    assert {name: one.returncode for name, one in done.items()} == {
        "trace what is there": 0,
        "trace the change": 0,
        "compare": 0,
    }, [one.stderr for one in done.values()]
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("| holds |") == len(re.findall("--budget", workflow_script()))


def test_the_workflow_fails_on_a_model_that_was_made_worse(repository: Path, tmp_path: Path) -> None:
    commit(repository, num_hidden_layers=3)
    done = dict(run_workflow(repository, tmp_path))
    assert done["compare"].returncode == 3
    assert "These budgets are not met: prefill.total.flops<=+1%, parameters<=+0" in done["compare"].stderr
    assert "cache<=+0" in done["compare"].stderr  # half as much again
    assert "violated" in (tmp_path / "summary.md").read_text()


def workflow_script() -> str:
    return str(next(step["run"] for step in workflow()["jobs"]["budget"]["steps"] if step.get("name") == "compare"))


def test_the_page_shows_the_workflow_as_it_is() -> None:
    page, recipe = (
        (ROOT / "docs" / "reference" / "budgets-in-ci.md").read_text("utf-8"),
        (RECIPES / "perf-budget.yml").read_text(),
    )
    parts = re.findall(r"<!-- part of: examples/ci/perf-budget.yml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    assert len(parts) == 2
    assert [part for part in parts if part not in recipe] == []


def run_script(repository: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The hook's entry by hand."""
    return subprocess.run(
        [RECIPES / "perf_budget.sh", *words],
        cwd=repository,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_entry_of_the_hook_says_how_to_make_a_baseline_and_then_checks_it(repository: Path, tmp_path: Path) -> None:
    refused = run_script(repository, tmp_path, *HOOK)
    assert refused.returncode == 2
    [advice] = re.findall(r"^  llm-perf-opt (.*)$", refused.stderr, re.MULTILINE)
    assert advice == "trace model --prompt-tokens 8 --out perf/baseline"
    words = [sys.executable, "-m", "llm_perf_opt", *advice.split()]
    subprocess.run(words, cwd=repository, env=environment(tmp_path), check=True, capture_output=True)
    assert run_script(repository, tmp_path, *HOOK).returncode == 0
    (repository / "model" / "config.json").write_text(json.dumps({**CONFIG, "num_key_value_heads": 4}))
    worse = run_script(repository, tmp_path, *HOOK)
    assert worse.returncode == 3
    assert "cache<=+0" in worse.stderr


@pytest.mark.slow
def test_the_hook_runs_under_pre_commit(repository: Path, tmp_path: Path) -> None:
    command = shutil.which("pre-commit") or os.environ.get("PRE_COMMIT")
    if command is None:
        pytest.skip("pre-commit is not installed, and PRE_COMMIT names none")
    hooks = tmp_path / "hooks"
    (hooks / "examples").mkdir(parents=True)
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
    shutil.copytree(RECIPES, hooks / "examples" / "ci")
    git(hooks, "init", "--quiet")
    git(hooks, "add", ".")
    git(hooks, "commit", "--quiet", "--message", "hooks")
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=hooks, check=True, capture_output=True, text=True)
    hook = {"id": "llm-perf-opt-budget", "files": "^model/", "args": HOOK}
    settings = {"repos": [{"repo": str(hooks), "rev": revision.stdout.strip(), "hooks": [hook]}]}
    (repository / ".pre-commit-config.yaml").write_text(json.dumps(settings))
    variables = {**environment(tmp_path), "PRE_COMMIT_HOME": str(tmp_path / "cache")}
    trace = ["-m", "llm_perf_opt", "trace", "model", "--prompt-tokens", "8", "--out", "perf/baseline"]
    subprocess.run([sys.executable, *trace], cwd=repository, env=variables, check=True, capture_output=True)

    def run() -> subprocess.CompletedProcess[str]:
        git(repository, "add", ".")
        words = [command, "run", "--all-files"]
        return subprocess.run(words, cwd=repository, env=variables, capture_output=True, text=True, timeout=600)

    same = run()
    assert same.returncode == 0, same.stdout + same.stderr
    assert "Passed" in same.stdout
    (repository / "model" / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 3}))
    worse = run()
    assert worse.returncode == 1, "pre-commit's own"
    assert "exit code: 3" in worse.stdout
    assert "These budgets are not met: flops<=+0%, cache<=+0" in worse.stdout
