"""A Chrome trace is whole or refused: torch says nothing where a disk is full."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.harness.profiler_details import exported_trace


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with torch.profiler.profile() as profiler:
        torch.ones(2, 3) @ torch.ones(3, 2)
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(file))
    return file.read_bytes()


def cut_to(recorded: bytes, size: int) -> Any:
    return SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_bytes(recorded[:size]))


def test_what_torch_writes_is_whole(recorded: bytes, tmp_path: Path) -> None:
    with exported_trace(cut_to(recorded, len(recorded)), tmp_path) as file:
        assert file.read_bytes() == recorded


def test_a_file_that_ends_with_the_brace_of_an_event_is_refused(recorded: bytes, tmp_path: Path) -> None:
    braces = [place + 1 for place, byte in enumerate(recorded[:-1].rstrip()[:-1]) if byte == ord("}")]
    assert len(braces) > 5
    for size in [*braces, 0, len(recorded) - 2]:
        with pytest.raises(PerfOptError, match="an incomplete file"), exported_trace(cut_to(recorded, size), tmp_path):
            pass
