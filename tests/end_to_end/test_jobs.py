"""The sixteen jobs of docs/start/jobs.md: found from the help alone, done by at most two commands, and answered."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from llm_perf_opt.cli.app import app
from scripts.jobs_page import PAGE, Job, first_lines, jobs, prepare, run

JOBS = jobs(PAGE.read_text("utf-8"))
VERBS = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # the root command is a group
each_job = pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.number} {job.word}")


def help_of(*words: str) -> str:
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output


def test_there_are_sixteen() -> None:
    assert [job.number for job in JOBS] == list(range(1, 17))


@each_job
def test_a_job_takes_two_commands_at_most(job: Job) -> None:
    assert 1 <= len(job.commands) <= 2


@each_job
def test_the_verb_is_found_by_the_word_of_the_job(job: Job) -> None:
    """In its own line of `llm-perf-opt --help`; a module of one's own in what stands above the list."""
    whole, _, listed = help_of().partition("Look at a model:")
    verb = shlex.split(job.commands[-1])[1]
    lines = [line for line in listed.splitlines() if re.match(rf"\s+{re.escape(verb)}\s", line)]
    assert re.search(rf"\b{job.word}\b", lines[0] if lines else whole)


@each_job
def test_every_option_of_a_job_is_in_the_help_of_its_verb(job: Job) -> None:
    for command in job.commands:
        program, verb, *words = shlex.split(command)
        if program != "llm-perf-opt":
            continue
        told = help_of(verb)
        assert [word for word in words if word.startswith("--") and word not in told] == []
        VERBS[verb].make_context(verb, list(words), resilient_parsing=False)


@pytest.mark.slow
@each_job
def test_the_commands_answer_and_the_page_shows_how_the_answer_begins(job: Job, tmp_path: Path) -> None:
    prepare(job, tmp_path)
    done = [run(command, tmp_path) for command in job.commands]
    assert [one.returncode for one in done] == [0] * len(done), done[-1].stderr[-800:]
    shown, real = (re.sub(r"[\d.,]+ (?=\w)", "", text) for text in (job.shown, first_lines(done[-1].stdout)))
    assert shown.splitlines()[0] == real.splitlines()[0]
    assert job.shown.count("\n") > 3
