"""Messages between the processes: what goes in comes out, and what is not one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.serving.engine_process.jobs import Failure, ReplayJob, read_message, write_message
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import ImageSpan, Request, Traffic
from llm_perf_opt.timing.step.step_table import Curve, StepTable, Surface


def test_a_job_comes_out_as_it_went_in(tmp_path: Path) -> None:
    surface = Surface(across=(1.0, 2.0), along=(1.0, 2.0), seconds=((1.0, 2.0), (3.0, 4.0)))
    job = ReplayJob(
        settings=EngineSettings(
            model="folder",
            device=SeenDevice(name="H100", memory_bytes=80, capability=(9, 0), compute_units=132),
            more={"block_size": 32},
        ),
        traffic=Traffic(
            requests=(
                Request(
                    id="a",
                    arrival_s=0.5,
                    prompt_tokens=9,
                    output_tokens=2,
                    images=(ImageSpan(offset=1, tokens=4, name="i"),),
                ),
            )
        ),
        table=StepTable(
            tokens=Curve(at=(1.0,), seconds=(1.0,)),
            head=Curve(at=(1.0,), seconds=(1.0,)),
            decoding=surface,
            prompts=surface,
        ),
    )
    write_message(tmp_path / "job", job)
    assert read_message(tmp_path / "job", ReplayJob) == job


def test_what_is_no_message_is_refused(tmp_path: Path) -> None:
    write_message(tmp_path / "job", {"settings": 1})
    with pytest.raises(PerfOptError, match="malformed"):
        read_message(tmp_path / "job", ReplayJob)


def test_a_failure_keeps_its_kind() -> None:
    assert isinstance(Failure(what="a", why="b", fix="c", is_usage=True).as_error(), UsageError)
    assert Failure(what="a", why="b", fix="c").as_error().exit_code == 1
