"""A line on stderr when something takes longer than two seconds: in every verb, and never on stdout."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import llm_perf_opt as lpo
from llm_perf_opt.cli import main, progress
from llm_perf_opt.cli.progress import say, signs_of_life
from llm_perf_opt.core import reading
from llm_perf_opt.core.run_lock import DOING, RunWatch, current_work
from llm_perf_opt.core.store import VARIABLE, entries
from scripts.campaigns.file_kinds import small_module
from scripts.campaigns.other_kinds import chrome_trace

MARK = "  still running ("
BAR = re.compile(r"\[[#.]{20}\]")
Shown = Callable[[], tuple[str, str]]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence of a hundredth of a second is long here."""
    monkeypatch.setattr(progress, "_FIRST_SIGN_S", 0.01)
    monkeypatch.setattr(progress, "_NEXT_SIGN_S", 0.05)
    monkeypatch.setattr(progress, "_BEAT_S", 0.002)


def test_a_line_after_two_seconds_of_silence_and_not_before(capsys: pytest.CaptureFixture[str]) -> None:
    with signs_of_life(["trace"]):
        time.sleep(1.5)
        say("Tracing a, prefill ...")
        time.sleep(1.5)
        assert capsys.readouterr().err == "Tracing a, prefill ...\n"
        time.sleep(1.5)
    shown = capsys.readouterr()
    assert shown.err.startswith(f"{MARK}2 s): Tracing a, prefill\n")
    assert shown.err.count(MARK) == 1
    assert shown.out == ""


def test_a_step_that_is_done_is_not_what_is_being_done(hasty: None, capsys: pytest.CaptureFixture[str]) -> None:
    with signs_of_life(["cost"]):
        say("Asking fvcore ...")
        say("  4 stages in 90 ms")
        time.sleep(0.1)
    assert f"{MARK}0 s): cost\n" in capsys.readouterr().err


def test_the_next_line_comes_ten_seconds_later() -> None:
    assert (progress._FIRST_SIGN_S, progress._NEXT_SIGN_S) == (2.0, 10.0)


def test_the_line_says_which_phase_and_which_module(hasty: None, capsys: pytest.CaptureFixture[str]) -> None:
    with signs_of_life(["trace"]), RunWatch("a model, prefill"):
        DOING[threading.get_ident()] = "layers.3\x1b"
        time.sleep(0.1)
    assert ": a model, prefill, in module layers.3\\x1b\n" in capsys.readouterr().err
    assert current_work() is None


def test_a_command_that_ran_before_has_a_bar(
    hasty: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the run before, which ended well; not of other words, and not beyond its time."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def run(words: list[str], seconds: float, code: int) -> str:
        with pytest.raises(SystemExit), signs_of_life(words):
            time.sleep(seconds)
            raise SystemExit(code)
        return capsys.readouterr().err

    assert not BAR.search(run(["trace", "a"], 0.5, code=1))
    assert not BAR.search(run(["trace", "a"], 0.5, code=0))
    assert not BAR.search(run(["trace", "b"], 0.5, code=0))
    lines = [line for line in run(["trace", "a"], 1.0, code=0).splitlines() if line.startswith(MARK)]
    assert re.fullmatch(r"  still running \(0 s\): trace  \[[#.]{20}\] 0 of about \d s", lines[0])
    assert not BAR.search(lines[-1])
    entry = next(entry for entry in entries() if entry.about == "trace a")
    entry.file.write_bytes(entry.file.read_bytes()[:-1])
    assert not BAR.search(run(["trace", "a"], 0.2, code=0))


def test_no_thread_is_left_and_nothing_is_said_of_quick_work(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.enumerate()
    with signs_of_life(["models"]):
        pass
    assert threading.enumerate() == before
    assert capsys.readouterr().err == ""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, a recording of the same model, and a model folder."""
    folder = tmp_path_factory.mktemp("verbs")
    lpo.trace(small_module(), (torch.zeros(2, 8),), out=folder / "run")
    (folder / "recording.json").write_text(json.dumps(chrome_trace()), "utf-8")
    return folder


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[None]:
    """Every file takes a while to read. A pass may be interrupted for long, which a busy machine does too."""
    read = reading.read_bytes

    def slowly(*given: object) -> bytes:
        time.sleep(0.1)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr("llm_perf_opt.core.callgraph.json_reader.read_bytes", slowly)
    monkeypatch.setattr("llm_perf_opt.core.recordings.read_bytes", slowly)
    monkeypatch.setattr("llm_perf_opt.measurements.profile.join._GAP_NS", 10**12)
    yield


VERBS = {
    "trace": "trace deepseek-ocr-tiny --prompt-tokens 4 --json",
    "graph": "graph run --json",
    "cost": "cost deepseek-ocr-tiny --prompt-tokens 4 --sources counted,torch-counter --json",
    "pages": "sweep deepseek-ocr-tiny --crops 1x1 --json",
    "report": "report run --json",
    "trace on a device": "trace run --device h100-sxm --json",
    "join": "join run recording.json --json",
    "compare": "compare run run --json",
    "export": "export deepseek-ocr-tiny --part projector --check export --json",
    "profile": "profile model=deepseek-ocr-tiny run.repeats=1 run.warmup=0 workload.max_new_tokens=1 --json",
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_that_it_is_at_work(
    verb: str, place: Path, slow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *VERBS[verb].split()])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert end.value.code in (0, None), shown.err
    assert MARK in shown.err
    assert MARK not in shown.out
    json.loads(shown.out)


def test_a_large_file_is_named_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Decoding holds Python's lock: no other thread could say anything meanwhile."""
    monkeypatch.setattr(reading, "_LARGE_BYTES", 10)
    file = tmp_path / "large.json"
    file.write_text('{"a": 1, "b": 2}')
    with caplog.at_level("INFO", "llm_perf_opt"):
        reading.read_bytes(file, reading.MODEL_FILE)
    assert f"Reading {file}, 16 B ..." in caplog.text
