"""`device` is the hardware of the deployment; what the code sees is the torch device, and follows from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import device_text
from tests.measurements.profile.made_runs import DEVICE

SMALL = {"mode": "tiny", "decode_steps": 0, "prompt_tokens": 1}


@pytest.fixture
def processor(tmp_path: Path) -> Path:
    """A file with one device, a processor that was measured with two threads."""
    file = tmp_path / "devices.toml"
    file.write_text(device_text(replace(DEVICE, threads=2)))
    return file


def test_code_sees_cuda_by_default_and_on_an_accelerator() -> None:
    assert lpo.trace("deepseek-ocr", **SMALL).graphs[0].workload["device"] == "cuda:0"
    trace = lpo.trace("deepseek-ocr", device="h100-sxm", **SMALL)
    assert trace.graphs[0].workload["device"] == "cuda:0"
    assert trace.graphs[0].deployment == {"device": "h100-sxm"}


def test_on_a_processor_code_sees_a_cpu(processor: Path) -> None:
    trace = lpo.trace("deepseek-ocr", device=DEVICE.id, devices_file=processor, **SMALL)
    assert trace.graphs[0].workload["device"] == "cpu"
    assert {one.meta.device for one in trace.graphs[0].parameters} == {"cpu"}


def test_the_device_of_a_trace_is_kept_and_predicted_for(tmp_path: Path) -> None:
    lpo.trace("deepseek-ocr", device="h100-sxm", out=tmp_path / "run", **SMALL)
    loaded = lpo.load(tmp_path / "run")
    assert loaded.predict().device is not None
    assert loaded.predict().device.id == "h100-sxm"
    assert loaded.predict("l4").device.id == "l4"


def test_a_torch_device_is_no_hardware() -> None:
    with pytest.raises(UsageError, match="cuda"):
        lpo.trace("deepseek-ocr", device="cuda", **SMALL)
