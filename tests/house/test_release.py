"""What a stranger installs, runs in CI and cites: the files of a release agree, and the action works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from scripts import light_install, release

yaml = pytest.importorskip("yaml", reason="reads the action and the recipe; comes with the extra `study`")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
CONDA_NAMES = {"msgspec": "msgspec-python"}  # packages that conda-forge names otherwise


def loaded(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_one_version_and_one_date_in_every_file_of_a_release() -> None:
    assert list(release.version_problems(lpo.__version__)) == []
    assert loaded("CITATION.cff")["version"] == lpo.__version__
    assert len(list(release.version_problems("9.9.9"))) == 3


def test_the_changelog_of_a_release_fits_one_screen() -> None:
    section = (ROOT / "CHANGELOG.md").read_text("utf-8").partition(f"## {lpo.__version__}")[2].partition("\n## ")[0]
    assert 5 <= len(re.findall(r"^- ", section, re.MULTILINE)) <= 12


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = loaded("recipe/meta.yaml")
    wanted = {CONDA_NAMES.get(name, name): bounds for name, bounds in map(split_requirement, PROJECT["dependencies"])}
    asked = dict(split_requirement(one.replace(" ", "")) for one in recipe["requirements"]["run"])
    assert asked == {**wanted, "python": PROJECT["requires-python"]}
    assert recipe["about"]["license"] == PROJECT["license"]
    (name, entry), *_ = PROJECT["scripts"].items()
    assert recipe["build"]["entry_points"] == [f"{name} = {entry}"]


def split_requirement(text: str) -> tuple[str, str]:
    name = re.match(r"[A-Za-z0-9._-]+", text)
    assert name is not None
    return name[0], text[name.end() :]


def docker_problems(text: str) -> list[str]:
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    words = [line.split(maxsplit=1) for line in lines]
    users = [rest for word, rest in words if word == "USER"]
    last = max(number for number, (word, _) in enumerate(words) if word == "FROM")
    wrong = [
        f"base without a version: {rest}"
        for word, rest in words
        if word == "FROM" and not re.search(r":\d+\.\d+\.\d+", rest)
    ]
    wrong += [f"ADD: {rest}" for word, rest in words if word == "ADD"]
    pips = [part for word, rest in words if word == "RUN" for part in rest.split("&&") if "pip install" in part]
    wrong += [f"pip with a cache: {part.strip()}" for part in pips if "--no-cache-dir" not in part]
    wrong += [f"a secret or sudo: {rest}" for _, rest in words if re.search(r"sudo|TOKEN|PASSWORD", rest)]
    if not users or users[-1].strip() in ("root", "0") or not any(word == "USER" for word, _ in words[last:]):
        wrong.append("runs as root")
    return wrong


def test_the_image_is_pinned_slim_and_runs_without_rights() -> None:
    assert docker_problems(DOCKERFILE) == []
    assert "-slim" in DOCKERFILE
    assert "https://download.pytorch.org/whl/cpu" in DOCKERFILE


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("USER perf", "USER root"),
        ("USER perf\n", ""),
        ("python:3.12.12-slim", "python:slim"),
        ("COPY src", "ADD src"),
        (" --no-cache-dir", ""),
    ],
)
def test_a_worse_image_is_noticed(good: str, bad: str) -> None:
    assert good in DOCKERFILE
    assert docker_problems(DOCKERFILE.replace(good, bad)) != []


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    kept = (ROOT / ".dockerignore").read_text("utf-8").split()
    for name in (name for line in copied for name in line.split()):
        assert (ROOT / name).exists()
        assert f"!{name}" in kept


COMMAND = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$RUNNER_TEMP/words"
echo '# the report'
exit "$WANTED_CODE"
"""


def run_action(tmp_path: Path, code: int, command: str | None = COMMAND, **inputs: str) -> tuple[int, dict[str, str]]:
    """The step `compare` as a runner starts it: bash -e with files for outputs and the summary."""
    (step,) = (step for step in loaded("action.yml")["runs"]["steps"] if step["name"] == "compare")
    tools, temporary = tmp_path / "bin", tmp_path / "temp"
    tools.mkdir()
    temporary.mkdir()
    program = tools / "llm-perf-opt"
    program.write_text(command or f'#!/usr/bin/env bash\nexec "{sys.executable}" -m llm_perf_opt "$@"\n')
    program.chmod(0o755)
    files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    world = {**os.environ, **{name: str(file) for name, file in files.items()}, "RUNNER_TEMP": str(temporary)}
    world |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "WANTED_CODE": str(code), "GITHUB_ACTIONS": "true"}
    given = {"BEFORE": "before", "AFTER": "after", "BUDGETS": "flops<=+1%\n", "GPUS": "", **inputs}
    world |= {f"INPUT_{name}": value for name, value in given.items()}
    script = tmp_path / "step.sh"
    script.write_text(step["run"])
    shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)]
    ran = subprocess.run(shell, cwd=tmp_path, env=world, capture_output=True, text=True, check=False)
    said = {name: file.read_text() for name, file in files.items()}
    said["words"] = (temporary / "words").read_text() if (temporary / "words").is_file() else ""
    return ran.returncode, {**said, "stdout": ran.stdout, "stderr": ran.stderr}


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_action_ends_as_compare_does_and_writes_summary_and_outputs(tmp_path: Path, code: int) -> None:
    ended, said = run_action(tmp_path, code)
    assert ended == code
    assert said["GITHUB_STEP_SUMMARY"] == "# the report\n"
    assert said["GITHUB_OUTPUT"].splitlines()[0] == f"exit-code={code}"
    assert ("::error title=Budget broken::" in said["stdout"]) == (code == 3)


def test_every_line_of_budgets_is_one_word_and_nothing_in_an_input_runs(tmp_path: Path) -> None:
    budgets = "prefill.total.flops<=+1%\n\n  \npeak_memory<=20GiB; touch hacked\n$(touch hacked)\n"
    ended, said = run_action(tmp_path, 0, BUDGETS=budgets, GPUS="h100-sxm", BEFORE="--help")
    assert ended == 0
    words = said["words"].splitlines()
    assert words[:7] == ["compare", "--format", "markdown", "--gpus", "h100-sxm", "--rates", "data-sheet"]
    wanted = ["prefill.total.flops<=+1%", "peak_memory<=20GiB; touch hacked", "$(touch hacked)"]
    assert [word for word in words[7:] if word != "--budget"][:3] == wanted
    assert words[-3:] == ["--", "--help", "after"]
    assert not (tmp_path / "hacked").exists()


def test_the_action_hands_inputs_to_its_shell_as_variables_alone() -> None:
    """An expression inside a script would run what a branch is named."""
    for step in loaded("action.yml")["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"


@pytest.mark.slow
def test_the_action_passes_and_fails_with_the_real_command(tmp_path: Path) -> None:
    trace = [sys.executable, "-m", "llm_perf_opt", "trace", "deepseek-ocr-tiny", "--mode", "base", "--out"]
    for name, batch in (("before", "1"), ("after", "2")):
        subprocess.run([*trace, str(tmp_path / name), "--batch", batch], check=True, capture_output=True)
    where = {name.upper(): str(tmp_path / name) for name in ("before", "after")}
    for name, budget, code in (("wide", "flops<=+200%", 0), ("tight", "flops<=+1%", 3)):
        place = tmp_path / name
        place.mkdir()
        ended, said = run_action(place, 0, None, BUDGETS=budget, **where)
        assert ended == code, said["stderr"]
        assert "flops" in said["GITHUB_STEP_SUMMARY"].lower()


def test_metadata_that_an_index_would_refuse_is_refused() -> None:
    good = (
        b"Metadata-Version: 2.4\nName: llm-perf-opt\nSummary: What it does.\nLicense-Expression: MIT\n"
        b"Requires-Python: >=3.11\nRequires-Dist: numpy>=1.26\nRequires-Dist: torch<2.14; extra == 'trace'\n"
        b"Description-Content-Type: text/markdown\n\n" + b"word " * 200
    )
    assert list(release.metadata_problems(good)) == []
    assert "asks for torch" in " ".join(release.metadata_problems(good.replace(b"; extra == 'trace'", b"")))
    for part in (b"License-Expression: MIT\n", b"Description-Content-Type: text/markdown\n", b"What it does."):
        assert len(list(release.metadata_problems(good.replace(part, b"")))) == 1


def test_a_step_that_fails_leaves_its_line_open(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def breaks(_: release.Release) -> str:
        raise release.ReleaseError("no")

    assert not release.tried(breaks, release.Release(out=tmp_path))
    assert capsys.readouterr().out.startswith("[ ] breaks, 0 s")


def test_the_light_install_lacks_what_it_should_and_tries_what_the_page_promises() -> None:
    assert {step.command.split()[0] for step in light_install.STEPS} >= {"trace", "graph", "cost", "compare", "serve"}
    assert {step.code for step in light_install.STEPS} == {0, 1, 2}
