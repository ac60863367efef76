"""The page of jobs: its questions, words and commands, run in a folder that holds what they name.

    python -m scripts.jobs_page [NUMBER ...]     run the commands, and write their first lines into docs/start/jobs.md

The test of the jobs reads the page by the same functions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "start" / "jobs.md"
CONFIGS = ROOT / "tests" / "facts" / "deployment" / "configs"
LINES = 12  # of an answer that the page shows
FOLDERS = {  # what a command names -> a configuration of that model
    "meta-llama/Llama-3.1-70B": "llama31-70b",
    "meta-llama/Llama-3.1-8B": "llama31-8b",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl-8b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "my-fp8-checkpoint": "llama31-8b-fp8ct",
}
TRACED = {"before/": "--mode base", "after/": "--mode base --prompt-tokens 21"}  # of deepseek-ocr-tiny
_JOB = re.compile(r"^## (?P<number>\d+)\. (?P<question>.*?)$(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"(?<=<!-- first lines -->\n```text\n).*?(?=^```)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A question, the word by which its verb is found in the help, and the commands that answer it."""

    number: int
    question: str
    word: str
    commands: tuple[str, ...]
    python: str
    shown: str


def jobs(text: str) -> list[Job]:
    """The jobs of the page, in order."""
    return [
        Job(
            number=int(job["number"]),
            question=job["question"],
            word=_one(r"The word is \*\*(.+?)\*\*", job["body"]),
            commands=tuple(_one(r"```sh\n(.*?)```", job["body"]).strip().splitlines()),
            python="".join(re.findall(r"```python\n(.*?)```", job["body"], re.DOTALL)),
            shown="".join(_SHOWN.findall(job["body"])),
        )
        for job in _JOB.finditer(text)
    ]


def _one(pattern: str, text: str) -> str:
    [text_of_group] = re.findall(pattern, text, re.DOTALL)
    return str(text_of_group)


def prepare(job: Job, place: Path) -> None:
    """Put there what the commands of a job name: a folder for a model that is not known by name, traces, a file."""
    line = " ".join(job.commands)
    for name, config in FOLDERS.items():
        if name in line.split() and not _is_known(name):
            shutil.copytree(CONFIGS / config, place / name)
    for folder, options in TRACED.items():
        if folder in line.split():
            run(f"llm-perf-opt trace deepseek-ocr-tiny {options} --out {folder}", place).check_returncode()
    if job.python:
        (place / "my_module.py").write_text(job.python, "utf-8")


def _is_known(name: str) -> bool:
    from llm_perf_opt.core.errors import PerfOptError
    from llm_perf_opt.tracing.origin import find_adapter

    try:
        find_adapter(name)
    except PerfOptError:
        return False
    return True


def run(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """One command line of the page, with the Python and the package that run this."""
    line = re.sub(r"^llm-perf-opt ", f"{sys.executable} -m llm_perf_opt ", command)
    line = re.sub(r"^python ", f"{sys.executable} ", line)
    return subprocess.run(line, shell=True, cwd=place, capture_output=True, text=True, timeout=1800)


def first_lines(answer: str) -> str:
    """The beginning of an answer, with nothing behind a line's last word."""
    return "".join(f"{line.rstrip()}\n" for line in answer.splitlines()[:LINES])


def main() -> None:
    """Write the first lines of every job, or of some."""
    text = PAGE.read_text("utf-8")
    wanted = {int(number) for number in sys.argv[1:]}
    for job in jobs(text):
        if wanted and job.number not in wanted:
            continue
        with tempfile.TemporaryDirectory() as name:
            prepare(job, Path(name))
            done = [run(command, Path(name)) for command in job.commands]
        if any(process.returncode for process in done):
            raise SystemExit(f"job {job.number} failed: {done[-1].stderr[-800:]}")
        whole = next(match for match in _JOB.finditer(text) if int(match["number"]) == job.number)
        [shown] = _SHOWN.finditer(text, whole.start("body"), whole.end("body"))
        text = text[: shown.start()] + first_lines(done[-1].stdout) + text[shown.end() :]
        PAGE.write_text(text, "utf-8")
        sys.stdout.write(f"job {job.number}: {job.question}\n")


if __name__ == "__main__":
    main()
