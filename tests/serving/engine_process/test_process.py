"""The border to vLLM's process: an answer, an error of ours, an error of vLLM's, and a process that dies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.engine_process.environment import EngineEnvironment
from llm_perf_opt.serving.engine_process.process import EngineProcess, environment_variables
from llm_perf_opt.serving.requests import Replayed

OURS = EngineEnvironment(python=Path(sys.executable), version="0")


def test_an_error_inside_is_told_with_its_reason_and_the_process_goes_on() -> None:
    """This Python has no vLLM and the job is no job: both ends of the border are real, only the engine is missing."""
    with EngineProcess(OURS) as process:
        for _ in range(2):
            with pytest.raises(PerfOptError, match="malformed"):
                process.ask("replay", {"settings": 1}, Replayed)


def test_a_process_that_dies_is_told_with_what_it_said(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    program.chmod(0o755)
    with EngineProcess(EngineEnvironment(python=program, version="9")) as process:  # noqa: SIM117 - the first must succeed
        with pytest.raises(PerfOptError) as caught:
            process.ask("replay", {}, Replayed)
    assert "code 3" in caught.value.what
    assert "no such library" in caught.value.why


def test_the_process_sees_our_package_and_nothing_that_hides_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    variables = environment_variables()
    assert "VLLM_TARGET_DEVICE" not in variables
    assert (Path(variables["PYTHONPATH"]) / "llm_perf_opt" / "serving").is_dir()
