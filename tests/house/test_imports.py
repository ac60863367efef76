"""`import llm_perf_opt` and `--help` load no torch and are quick."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.slowness import slowness

HEAVY = ("torch", "transformers", "numpy", "PIL", "rich")
CALL = "import sys; sys.argv = ['llm-perf-opt', *{words!r}]; from llm_perf_opt.cli import main"
SHOW_HEAVY = f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def heavy_after(words: list[str]) -> str:
    done = run(f"import atexit\n{CALL.format(words=words)}\natexit.register(lambda: {SHOW_HEAVY})\nmain()")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = run(f"import sys, llm_perf_opt, llm_perf_opt.cli, llm_perf_opt.api\n{SHOW_HEAVY}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "HEAVY []"


@pytest.mark.parametrize("words", [["--help"], ["trace", "--help"], ["--version"], ["doctor"]], ids=" ".join)
def test_what_runs_no_model_loads_nothing_heavy(words: list[str]) -> None:
    assert heavy_after(words) == "HEAVY []"


def test_help_appears_at_once() -> None:
    """The target is 0.3 s; the bound is wider, and on processor time, because a busy machine is no regression."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(f"{CALL.format(words=['--help'])}\nmain()")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "trace" in done.stdout
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.6 * slowness()
