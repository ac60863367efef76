"""Run a gate inside its environment, which `.ci/run` and `.ci/long` make.

    python -m scripts.gate run | quick | long
    python -m scripts.gate next                  raise the number in .ci/landing: another slice is due
    python -m scripts.gate lock                  the newest versions for the gate, with hashes; .ci/held.txt holds some
    python -m scripts.gate durations [RECORD]    what is expensive; with RECORD, take over what a gate recorded

Parts run two at a time, the longest first; then pytest takes this process over, so that the last line is its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.gate import durations as kept
from scripts.gate.changes import base_commit, changed_files, git
from scripts.gate.import_graph import ImportGraph
from scripts.gate.parts import Part, run_parts
from scripts.gate.selection import (
    LANDING,
    QUICK_S,
    REACHED_S,
    SLICES,
    Plan,
    choose,
    distances_of_commands,
    distances_of_tests,
    expensive,
    landing,
    nearest,
    write_plan,
)
from scripts.page_commands import runnable

ROOT = Path(__file__).resolve().parents[2]
LOCK = ".ci/requirements.lock"
VERSIONS = ("3.12", "3.13", "lowest")
COMMANDS_S = 100.0  # of page commands of other slices that a change reaches
FAULTS = (sys.executable, "scripts/fault_campaign.py", "--jobs", "1")

# What the long gate does in a stranger's first hour, and each landing in part, on the tree as it lies here.
EXAMPLES = {"LLM_PERF_OPT_EXAMPLES": "0.2"}  # the share of a property's examples that a landing draws
BY_TURNS = (
    (
        "page python",
        'llm-perf-opt trace deepseek-ocr --image 1240x1754 --out "$scratch/run" && '
        'python -m scripts.page_python . "$scratch/run"',
        100,
    ),
    ("pictures", 'bash scripts/pictures.sh "$scratch"', 140),
    ("notebook", "for each in examples/*.ipynb; do python scripts/run_notebook.py $each; done", 140),
    (
        "guide",
        'cp -r src "$scratch" && PYTHONPATH="$scratch/src" '
        "python scripts/follow_guide.py docs/contributing/add-a-model.md",
        15,
    ),
)


def by_turns(number: int) -> Part:
    name, line, seconds = BY_TURNS[number % len(BY_TURNS)]
    script = f"set -e; scratch=$(mktemp -d); trap 'rm -rf \"$scratch\"' EXIT; {line}"
    return Part(name=name, command=("bash", "-c", script), seconds=seconds)


class Gate:
    """One run: its folder of logs, what changed, and how far that reaches."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.durations = kept.read(ROOT)
        self.base = base_commit(ROOT, self.durations.commit)
        self.changed = changed_files(ROOT, self.base) if self.base else []
        self.graph = ImportGraph(ROOT)
        self.reached = self.graph.distances(self.changed)
        self.number = landing(ROOT)

    def lint(self) -> list[Part]:
        venv_site = self.logs / "site"
        return [
            Part(name="ruff", command=("ruff", "check", "."), seconds=2),
            Part(name="format", command=("ruff", "format", "--check", "."), seconds=2),
            Part(name="types", command=("mypy", "--strict", "src"), seconds=150),
            Part(name="import rule", command=("lint-imports", "--no-cache"), seconds=25),
            Part(
                name="docs",
                command=("mkdocs", "build", "--strict", "--quiet", "--site-dir", str(venv_site)),
                seconds=12,
            ),
        ]

    def page_commands(self) -> tuple[Part, str]:
        """The commands of the pages that are due, reached or new; what is said of those left out."""
        lines = list(runnable(ROOT))
        seconds = {line: self.durations.commands.get(line, 0.0) for line in lines}
        distance = distances_of_commands(lines, self.reached)
        choice = choose(expensive(seconds), distance, number=self.number, budget_s=COMMANDS_S)
        chosen = [line for line in lines if line not in set(choice.left)]
        file = self.logs / "commands.json"
        file.write_text(json.dumps(chosen), "utf-8")
        command = (sys.executable, "-m", "scripts.page_commands", str(ROOT), "--chosen", str(file), "--workers", "1")
        part = Part(name="page commands", command=command, seconds=sum(seconds[line] for line in chosen))
        return part, f"page commands: {len(chosen)} of {len(lines)}"

    def tests(self) -> tuple[frozenset[str], str]:
        """Tests left to other landings, and what is said of them."""
        costly = expensive(self.durations.tests)
        distance = distances_of_tests(costly, self.reached, self.changed)
        choice = choose(costly, distance, number=self.number, budget_s=REACHED_S)
        saved = sum(costly[node] for node in choice.left)
        said = (
            f"slice {self.number % SLICES} of {SLICES} ({LANDING}): {len(choice.due)} expensive tests are due, "
            f"{len(choice.reached)} more are reached by the change, {len(choice.left)} are left ({saved:.0f} s of CPU)"
        )
        return frozenset(choice.left), said


def run_gate(logs: Path) -> None:
    os.environ.update(EXAMPLES)
    gate = Gate(logs)
    commands, said_of_commands = gate.page_commands()
    version = VERSIONS[gate.number % len(VERSIONS)]
    parts = [
        *gate.lint(),
        commands,
        by_turns(gate.number),
        Part(name="first hour", command=("bash", "scripts/first_hour.sh", "--short"), seconds=140, shows_output=True),
        Part(name=f"versions {version}", command=("bash", "scripts/versions.sh", version), seconds=100),
        Part(
            name="faults",
            command=(*FAULTS, "--landing", str(gate.number)),
            seconds=90,
        ),
    ]
    left_out, said = gate.tests()
    notes = (said, said_of_commands, f"base of the change: {gate.base or 'unknown'}, {len(gate.changed)} files")
    took = {**_environment_s(), **run_parts(parts, logs, os.environ).took}
    _become_pytest(Plan(left_out=left_out, notes=notes, took=took, record=str(logs / "tests.json")), logs)


def run_quick(logs: Path) -> None:
    """Lint; then tests of what the change reaches on one core, and on the other types of the rooms that changed."""
    os.environ.update(EXAMPLES)
    gate = Gate(logs)
    lint = [part for part in gate.lint() if part.seconds < 5]
    took = {**_environment_s(), **run_parts(lint, logs, os.environ).took}
    sources = [file for file in gate.changed if file.startswith("src/") and file.endswith(".py")]
    rooms = sorted({str(Path(file).parent) for file in sources if (ROOT / file).exists()})
    files, left_out, said = quick_tests(gate)
    plan = Plan(notes=(said,), took=took, left_out=left_out)
    with (logs / "types.log").open("w") as log:
        types = subprocess.Popen(("mypy", "--strict", *rooms), stdout=log, stderr=log) if rooms else None
    code = subprocess.run(pytest_command(plan, logs, workers=1 if rooms else 2) + files, check=False).returncode
    if types is not None and types.wait() != 0:
        print((logs / "types.log").read_text("utf-8"), end="")
        code = 1
    sys.exit(code)


def quick_tests(gate: Gate) -> tuple[list[str], frozenset[str], str]:
    """Test files that the change reaches, the expensive tests of other files, and what is said of them."""
    costly = expensive(gate.durations.tests)
    distance = distances_of_tests(costly, gate.reached, gate.changed)
    chosen = nearest(costly, distance, QUICK_S / 2)
    cost = {file: gate.durations.small.get(file, 0.0) for file in gate.graph.files if _is_test(file)}
    for node in gate.durations.tests.keys() - costly.keys():
        file = node.partition("::")[0]
        cost[file] = cost.get(file, 0.0) + gate.durations.tests[node]
    files = nearest(cost, gate.reached, QUICK_S / 2)
    said = f"{len(files)} test files and {len(chosen)} expensive tests are near the {len(gate.changed)} changed files"
    wanted = sorted({*files, *(node.partition("::")[0] for node in chosen)})
    left_out = costly.keys() - set(chosen)
    return wanted or ["tests/house"], frozenset(left_out), said


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def run_long(logs: Path) -> None:
    gate = Gate(logs)
    record = logs / "commands.json"
    vllm, sglang = logs / "vllm", logs / "sglang"
    for made in (vllm, sglang):
        shutil.rmtree(made, ignore_errors=True)  # their environments are made from nothing
    parts = [
        *gate.lint(),
        Part(
            name="first hour",
            command=("bash", "scripts/first_hour.sh", "--record", str(record)),
            seconds=900,
            shows_output=True,
        ),
        Part(
            name="versions",
            command=("env", "VERSIONS_STRICT=", "bash", "scripts/versions.sh"),
            seconds=300,
            shows_output=True,
        ),
        Part(
            name="faults",
            command=(sys.executable, "scripts/fault_campaign.py", "--long", str(gate.number), "--jobs", "1"),
            seconds=1800,
        ),
        Part(
            name="vllm end to end",
            command=(sys.executable, "scripts/vllm_end_to_end.py", "--folder", str(vllm)),
            seconds=1000,
            shows_output=True,
        ),
        Part(
            name="sglang environment",
            command=(sys.executable, "-m", "llm_perf_opt", "engines", "install", "sglang", "--folder", str(sglang)),
            seconds=600,
        ),
    ]
    times = run_parts(parts, logs, os.environ, stops_at_failure=False)
    took = {**_environment_s(), **times.took}
    os.environ["LLM_PERF_OPT_VLLM_PYTHON"] = str(vllm / "bin" / "python")
    os.environ["LLM_PERF_OPT_SGLANG_PYTHON"] = str(sglang / "bin" / "python")
    failed = tuple(times.failed)
    _become_pytest(Plan(is_long=True, took=took, failed=failed, record=str(logs / "tests.json")), logs)


def pytest_command(plan: Plan, logs: Path, workers: int) -> list[str]:
    """Hypothesis draws the same examples for the same commit here, so that the gate gives one answer.

    A worker that is done takes over half of what another has left, so that all end together.
    """
    file = logs / "plan.json"
    write_plan(plan, file)
    print("== tests", flush=True)
    # One word for the option and its file: pytest would take a path that stands alone for a place of tests.
    options = ["-q", "--hypothesis-profile=ci", "-p", "scripts.gate.pytest_plugin", f"--gate-plan={file}"]
    spread = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else ["-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options, *spread]


def _become_pytest(plan: Plan, logs: Path) -> None:
    """The gate ends as pytest ends: its line is the last."""
    command = pytest_command(plan, logs, workers=int(os.environ.get("PYTEST_WORKERS", "2")))
    os.execv(command[0], command)


def _environment_s() -> dict[str, float]:
    return {"environment": float(os.environ.get("GATE_ENVIRONMENT_S", "0"))}


def lock() -> None:
    """Versions and hashes of everything that the gate installs, but for torch, of which there are several builds."""
    left_out = ("--no-emit-package", "torch", "--no-emit-package", "llm-perf-opt")
    find_links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    words = ["uv", "pip", "compile", "pyproject.toml", "--extra", "dev", "--python-version", "3.11"]
    words += ["--generate-hashes", *left_out, "--constraint", ".ci/held.txt", "--no-header"]
    words += ["--quiet", "--upgrade", "-o", LOCK]
    subprocess.run([*words, *(["--find-links", find_links] if find_links else [])], check=True)


def show_or_keep(record: str | None, logs: Path) -> None:
    if record is not None:
        tests = json.loads(Path(record).read_text("utf-8"))
        commands_file = Path(record).with_name("commands.json")
        before = kept.read(ROOT)
        commands = json.loads(commands_file.read_text("utf-8")) if commands_file.exists() else {}
        known = commands if isinstance(commands, dict) else {}
        commit = git(ROOT, "rev-parse", "HEAD") or ""
        others = {node: seconds for node, seconds in before.tests.items() if (ROOT / node.partition("::")[0]).exists()}
        kept.write(ROOT, kept.from_record({**others, **tests}, {**before.commands, **known}, commit))
    print("\n".join(kept.most_expensive(kept.read(ROOT))))


def main() -> None:
    os.chdir(ROOT)
    venv = os.environ.get("LLM_PERF_OPT_VENV", sys.prefix)
    logs = Path(venv) / "gate"
    word, *rest = sys.argv[1:] or ["run"]
    if word == "next":
        (ROOT / LANDING).write_text(f"{landing(ROOT) + 1}\n", "utf-8")
    elif word == "lock":
        lock()
    elif word == "durations":
        show_or_keep(rest[0] if rest else None, logs)
    elif word in ("run", "quick", "long"):
        {"run": run_gate, "quick": run_quick, "long": run_long}[word](logs)
    else:
        sys.exit(f"No gate {word!r}: there are run, quick and long.")


if __name__ == "__main__":
    main()
