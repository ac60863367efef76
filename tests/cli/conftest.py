from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.plugins import MODELS, TRACERS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Calls the command in this process, with a stand-in model and tracer: exit code, stdout, stderr."""
    monkeypatch.setitem(MODELS._entries, "stand-in", "tests.cli.stand_ins:StandInAdapter")
    monkeypatch.setitem(TRACERS._entries, "weightless", "tests.cli.stand_ins:StandInTracer")

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["llm-perf-opt", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    yield call
