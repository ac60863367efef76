"""Run what `docs/evidence/plan.md` names for each point of the original plan, and write what it printed into the page.

    python -m scripts.plan_page [--outcomes FILE] [--minutes N] [--only commands|tests]

Tests run by file, commands one after the other in a folder with a trace in `run/`. Outcomes are kept in FILE, which is
written after each, so that a run that was ended goes on where it stopped; what was skipped runs again, so that another
environment can complete it. What N minutes did not reach stays as the page has it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "plan.md"
ROW = re.compile(r"\| \d{3}-\d+ \|")
NAMED = re.compile(r"`((?:tests/|llm-perf-opt |mypy |ruff )[^`]+)`")
_LONGEST = 110


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def named(page: str) -> list[str]:
    """Every test and command of the page, once."""
    rows = (cells_of(line) for line in page.splitlines() if ROW.match(line))
    return list(dict.fromkeys(name for row in rows for name in NAMED.findall(row[3])))


def outcomes_of(report: Path) -> dict[str, str]:
    """Test -> what became of it, from the JUnit report of pytest; cases of one function together."""
    cases: dict[str, list[str]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        module = case.get("classname", "").replace(".", "/")
        name = f"{module}.py::{case.get('name', '').partition('[')[0]}"
        if (skipped := case.find("skipped")) is not None:
            cases.setdefault(name, []).append(f"skipped: {skipped.get('message', '')}")
        else:
            is_bad = any(case.find(kind) is not None for kind in ("failure", "error"))
            cases.setdefault(name, []).append("failed" if is_bad else "passed")
    return {name: _counted(outcomes) for name, outcomes in cases.items()}


def _counted(outcomes: list[str]) -> str:
    words = ((kind, sum(outcome.startswith(kind) for outcome in outcomes)) for kind in ("passed", "failed", "skipped"))
    text = ", ".join(f"{count} {kind}" for kind, count in words if count)
    reason = next((outcome.partition(": ")[2] for outcome in outcomes if outcome.startswith("skipped")), "")
    return f"{text} ({short(reason)})" if reason else text


def short(text: str) -> str:
    """One line that ends no cell."""
    line = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def run_tests(tests: list[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--junitxml={report}", *tests]
        subprocess.run(words, cwd=ROOT, check=False, capture_output=True)
        return outcomes_of(report)


def run_command(command: str, folder: Path, seconds: float) -> str | None:
    """The first line that the command printed; None: it did not end in time. A table writes a pipe as `\\|`."""
    words = ["bash", "-c", command.replace(r"\|", "|")]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    said = (done.stdout if done.returncode == 0 else done.stderr).strip() or (done.stderr + done.stdout).strip()
    told = [line for line in said.splitlines() if line.strip() and not line.lstrip().startswith("still running")]
    first = next((line for line in told if line.startswith("error: ")), told[0] if told else "nothing")
    return short(first if done.returncode == 0 else f"exit code {done.returncode}: {first}")


def filled(page: str, known: dict[str, str]) -> str:
    """The page with the last column anew, where every outcome of a row is known."""
    lines = []
    for line in page.splitlines():
        if ROW.match(line):
            row = cells_of(line)
            names = NAMED.findall(row[3])
            if names and all(name in known for name in names):
                line = f"| {' | '.join([*row[:4], '; '.join(known[name] for name in names)])} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outcomes", type=Path)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--only", choices=("commands", "tests"))
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    known: dict[str, str] = {}
    if options.outcomes is not None and options.outcomes.is_file():
        known = json.loads(options.outcomes.read_text("utf-8"))
    missing = [name for name in named(PAGE.read_text("utf-8")) if "skipped" in known.get(name, "skipped")]

    def keep(outcomes: dict[str, str]) -> None:
        known.update(outcomes)
        if options.outcomes is not None:
            options.outcomes.write_text(json.dumps(known, indent=1), "utf-8")
        PAGE.write_text(filled(PAGE.read_text("utf-8"), known), "utf-8")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only != "tests":
            run_command("llm-perf-opt trace deepseek-ocr --image 1240x1754 --out run/", folder, 600)
        for command in (line for line in missing if not line.startswith("tests/") and options.only != "tests"):
            left_s = until - time.monotonic()
            place = folder if command.startswith("llm-perf-opt ") else ROOT
            if left_s > 0 and (said := run_command(command, place, left_s)) is not None:
                keep({command: said})
    tests = sorted(line for line in missing if line.startswith("tests/") and options.only != "commands")
    for _, of_file in groupby(tests, lambda test: test.partition("::")[0]):
        if time.monotonic() < until:
            keep(run_tests(list(of_file)))


if __name__ == "__main__":
    main()
