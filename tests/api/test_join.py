"""A recording on a trace, with figures small enough to add up by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import find_device
from tests.costs.small_run import ACTIVATE_BYTES, PROJECT_FLOPS, small_run

GEMM, RELU, COPY = (
    "sm90_xmma_gemm_f32f32",
    "vectorized_elementwise_kernel<4, launch_clamp_scalar>",
    "direct_copy_kernel",
)
# Root calls the encoder twice and the decoder once; each projects and calls a norm that activates; root activates last.
FORWARD = [(GEMM, 40), (RELU, 3), (GEMM, 50), (RELU, 3), (GEMM, 60), (RELU, 4), (RELU, 5)]
ENCODER_NS, DECODER_NS, NORM_NS, ROOT_NS = 90_000, 60_000, 10_000, 5_000


def recording(folder: Path, kernels: list[tuple[str, int]], *, device: str = "NVIDIA H100 80GB HBM3") -> Path:
    """Names and times in microseconds, as a CUDA graph leaves them."""
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 100 * row, "dur": time_us, "pid": 0, "tid": 7}
        for row, (name, time_us) in enumerate(kernels)
    ]
    file = folder / "recording.json"
    file.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": device}]}), "utf-8")
    return file


def trace() -> lpo.Trace:
    return lpo.Trace(name="small", graphs=(small_run(),))


def test_stages_modules_and_ops_add_up(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, FORWARD))
    assert (answer.forwards, answer.attributed, answer.found_flops, answer.is_complete) == (1, 1.0, 1.0, True)
    assert answer.device_ns == answer.total.device_ns == 165_000
    assert {module.name: module.device_ns for module in answer.modules} == {
        "encoder": ENCODER_NS,
        "decoder": DECODER_NS,
        "norm": NORM_NS,
        "(outside)": ROOT_NS,
    }
    # The norm belongs to the stage of the module that called it: twice the encoder, once the decoder.
    assert {stage.name: stage.device_ns for stage in answer.stages} == {
        "vision": ENCODER_NS + 6_000,
        "prefill": DECODER_NS + 4_000 + ROOT_NS,
    }
    assert {kind.name: (kind.calls, kind.kernels) for kind in answer.op_kinds} == {"matmul": (3, 3), "relu": (4, 4)}


def test_rates_and_shares_of_the_peaks(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, FORWARD))
    matmuls, activations = answer.op_kinds
    device = find_device("NVIDIA H100 80GB HBM3")
    assert answer.device == device
    assert matmuls.flops == 3 * PROJECT_FLOPS
    assert matmuls.flops_per_s == pytest.approx(3 * PROJECT_FLOPS / 150e-6)
    assert matmuls.mfu == pytest.approx(3 * PROJECT_FLOPS / 150e-6 / device.peak("float32"))
    assert activations.bytes_per_s == pytest.approx(4 * ACTIVATE_BYTES / 15e-6)
    assert activations.mbu == pytest.approx(4 * ACTIVATE_BYTES / 15e-6 / device.bandwidth_bytes_per_s)


def test_two_forwards_have_twice_the_flops(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, FORWARD * 2))
    assert (answer.forwards, answer.total.flops) == (2, 2 * 3 * PROJECT_FLOPS)


def test_a_kernel_that_the_trace_does_not_run_is_the_modules_or_nobodys(tmp_path: Path) -> None:
    """A copy between the product of the encoder and its norm is the encoder's; one before everything is nobody's."""
    kernels = [(COPY, 2), FORWARD[0], (COPY, 7), *FORWARD[1:], ("frobnicate", 9)]
    answer = trace().join(recording(tmp_path, kernels))
    assert {module.name: module.device_ns for module in answer.modules}["encoder"] == ENCODER_NS + 7_000
    assert [(kernel.name, kernel.place, kernel.device_ns) for kernel in answer.without_op] == [
        ("frobnicate", None, 9_000),
        (COPY, "Module", 7_000),
        (COPY, None, 2_000),
    ]
    assert answer.attributed == pytest.approx(172 / 183)
    assert not answer.is_complete


def test_what_would_be_faster_than_the_device_is_not_believed(tmp_path: Path) -> None:
    """512 FLOPs in 40 microseconds are 12.8 MFLOP/s, which a device of 1 MFLOP/s cannot do."""
    device = replace(find_device("h100-sxm"), peak_flops_per_s={"fp32": 10**6})
    answer = trace().join(recording(tmp_path, FORWARD), device=device)
    assert answer.too_fast == 1.0
    assert not answer.is_complete
    assert any("faster than the device allows" in note.text for note in answer.report().notes)


def test_an_unknown_device_gives_rates_and_no_shares(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, FORWARD, device="Mystery 9000"))
    assert answer.device is None
    assert (answer.total.mfu, answer.total.mbu, answer.too_fast) == (None, None, None)
    assert answer.total.flops_per_s is not None
    assert not answer.is_complete  # nobody knows whether such a device can do the traced work in this time
    assert any("'Mystery 9000' is not in the table" in note.text for note in answer.report().notes)


def test_what_takes_far_longer_than_predicted_is_told(tmp_path: Path) -> None:
    slow = [(name, 100 * time_us) for name, time_us in FORWARD]
    notes = [note.text for note in trace().join(recording(tmp_path, slow)).report().notes]
    assert any("times as long as predicted" in text for text in notes)


def test_the_peaks_of_another_gpu_are_named_as_such(tmp_path: Path) -> None:
    notes = [note.text for note in trace().join(recording(tmp_path, FORWARD), device="rtx-5090").report().notes]
    assert any(text.startswith("The recording is of NVIDIA H100") for text in notes)


def test_the_answer_comes_first_and_every_figure_is_plain(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, FORWARD))
    assert [line.partition(":")[0] for line in answer.report().answer] == ["Attributed", "Reached", "Longest"]
    assert len(answer.to_pandas("Answer")) == 3
    plain = json.loads(json.dumps(answer.to_dict()))
    assert plain["attributed"] == 1.0
    assert plain["evidence"] == [{"evidence": "kernel name in order", "kernels": 7, "device_ns": 165_000}]
    assert "&lt;table" in answer._repr_html_()


def test_a_name_from_a_foreign_file_is_escaped(tmp_path: Path) -> None:
    answer = trace().join(recording(tmp_path, [*FORWARD, ("<script>alert(1)</script>", 9)]))
    page = tmp_path / "page.html"
    answer.save(page)
    assert "<script>alert(1)" not in page.read_text("utf-8")


@pytest.mark.parametrize("step", ["x", "1-", "-1", "3-y", "1.5"])
def test_a_step_is_a_number_or_a_range(step: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no step"):
        trace().join(recording(tmp_path, FORWARD), step=step)


def test_a_phase_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no phase 'decode'"):
        trace().join(recording(tmp_path, FORWARD), "decode")


def test_a_trace_without_ops_cannot_be_joined(tmp_path: Path) -> None:
    blind = lpo.Trace(name="small", graphs=(replace(small_run(), ops=None, coverage=None),))
    with pytest.raises(PerfOptError, match="holds no ops"):
        blind.join(recording(tmp_path, FORWARD))
