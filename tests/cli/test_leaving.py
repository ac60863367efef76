"""How the command ends: exit codes and messages for streams that cannot be written to, odd paths, and Ctrl-C."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.cli.output import exit_codes
from llm_perf_opt.core.callgraph import read_callgraph, write_callgraph
from tests.cli.conftest import Run

COMMAND = [sys.executable, "-m", "llm_perf_opt"]
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")


class Stream:
    """A stdout that fails when it is written to or flushed."""

    encoding = "utf-8"

    def __init__(self, number: int) -> None:
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        raise OSError("no file")

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("words", [("--version",), ("models",), ("devices", "list"), ("devices", "template")])
def test_a_full_disk_behind_stdout_is_a_failure_with_a_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdout", Stream(errno.ENOSPC))
    code, _, err = run(*words)
    assert code == 1
    assert "why: No space left on device" in err


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("models",), ("devices", "list")])
def test_a_reader_that_has_enough_ends_the_command_quietly(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdout", Stream(errno.EPIPE))
    code, _, err = run(*words)
    assert code == 141
    assert err == ""


def test_a_stderr_that_is_full_costs_its_lines_and_not_the_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Stream(errno.ENOSPC))
    code, out, _ = run("devices", "show", "h100-sxm")
    assert code == 0
    assert "H100" in out


def test_a_name_too_long_for_the_system_is_told(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    code, _, err = run("graph", tmp_path / "run", "--out", tmp_path / f"{'x' * 300}.html")
    assert code == 2
    assert "why: File name too long" in err
    code, _, err = run("graph", "y" * 300)
    assert code == 2
    assert "why: File name too long" in err


def test_a_folder_in_the_place_of_a_file_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path / "run")[0] == 0
    (tmp_path / "page.html").mkdir()
    code, _, err = run("report", tmp_path / "run", "--out", tmp_path / "page.html", "--force")
    assert code == 2
    assert "name a file, not a folder" in err


def _with_batch(file: Path, batch: int) -> None:
    graph = read_callgraph(file)
    write_callgraph(replace(graph, workload={**graph.workload, "batch": batch}), file, overwrite=True)


def test_two_runs_in_one_folder_are_told_apart(run: Run, tmp_path: Path) -> None:
    assert run("trace", "stand-in", "--out", tmp_path)[0] == 0
    for name, batch in (("prefill", 4), ("decode", 4)):
        _with_batch(tmp_path / f"{name}.callgraph.json", batch)
    assert run("report", tmp_path)[0] == 0
    _with_batch(tmp_path / "decode.callgraph.json", 8)  # as a kill between two files that are overwritten leaves it
    code, _, err = run("report", tmp_path)
    assert code == 1
    assert "phases of two runs" in err


@needs_full_device
def test_the_whole_command_with_a_full_disk_and_a_closed_stdout() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Cannot write the result to stdout.\n  why: No space left on device\n")
    closed = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, "--version"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (closed.returncode, closed.stderr) == (0, "")


PRESS = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})
from llm_perf_opt import __main__ as entry
real = builtins.__import__
def pressing(name, *arguments, **options):
    if name == {name!r}:
        builtins.__import__ = real
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *arguments, **options)
builtins.__import__ = pressing
sys.argv = ["llm-perf-opt", *{words!r}]
entry.main()
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llm_perf_opt.cli.app", ["--help"]),
        ("typer", ["--help"]),
        ("llm_perf_opt.api.devices", ["devices", "list"]),
    ],
)
def test_ctrl_c_ends_with_130_from_the_first_import_on(name: str, words: list[str]) -> None:
    program = PRESS.format(name=name, words=words, handler="default_int_handler")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Interrupted.\n")


def test_a_command_in_the_background_of_a_script_ignores_ctrl_c() -> None:
    program = PRESS.format(name="typer", words=["--version"], handler="SIG_IGN")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("llm-perf-opt ")


SHUTDOWN = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from llm_perf_opt import __main__ as entry
atexit.register(os.kill, os.getpid(), signal.SIGINT)
class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
sys.argv = ["llm-perf-opt", "--version"]
{before}
entry.main()
"""


def test_ctrl_c_in_a_finaliser_or_while_python_ends_is_not_lost() -> None:
    late = subprocess.run(
        [sys.executable, "-c", SHUTDOWN.format(before="")], capture_output=True, text=True, check=False, timeout=120
    )
    assert (late.returncode, late.stderr) == (130, "Interrupted.\n")
    dropped = "entry.signal.signal(entry.signal.SIGINT, entry._on_interrupt)\n"
    dropped += "sys.unraisablehook = entry._on_unraisable\nkept = Finalised()\ndel kept\n"
    lost = subprocess.run(
        [sys.executable, "-c", SHUTDOWN.format(before=dropped)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (lost.returncode, lost.stderr) == (130, "Interrupted.\n")


def test_no_memory_is_a_message_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end, exit_codes():
        raise MemoryError
    assert end.value.code == 1
    assert capsys.readouterr().err.startswith("error: There is no memory left: the command stopped here.\n  why: ")
