"""Whole recordings of other people's GPUs, joined as they are and with everything but names and times taken away.

They are not part of the project. `LLM_PERF_OPT_GPU_TRACES_DIR` names a folder with `h100/` and `mi300/` as in
AMD-AGI/TraceLens, `tests/traces` (MIT), at commit 171dd74721ca1ec45709e5805b68ae1f65e27811.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.core.recordings.recording import Recording
from llm_perf_opt.measurements.join.attribution import ENOUGH, join_recording
from llm_perf_opt.measurements.join.join_report import ENOUGH_FLOPS
from llm_perf_opt.measurements.join.totals import TOO_MUCH, join_totals, too_fast
from tests.measurements.join.condensed_runs import without_host
from tests.measurements.join.ground_truth import score
from tests.measurements.join.traced_models import traced

FOLDER = os.environ.get("LLM_PERF_OPT_GPU_TRACES_DIR")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER,
        reason="LLM_PERF_OPT_GPU_TRACES_DIR names no folder of recordings: h100/ and mi300/ of tests/traces in "
        "github.com/AMD-AGI/TraceLens",
    ),
]
FILES = {
    "vit-base-224": "Falconsai_nsfw_image_detection__1016002",
    "qwen1.5-0.5b": "Qwen_Qwen1.5-0.5B-Chat__1016005",
    "timesformer-base": "facebook_timesformer-base-finetuned-k400__1016002",
    "owlv2-large": "google_owlv2-large-patch14-ensemble__1016001",
    "bert-small": "gaunernst_bert-small-uncased__1016001",
}
FORWARDS = {"owlv2-large": 5}  # one for each label; the others record one
RUNS = [(gpu, model) for gpu in ("h100", "mi300") for model in FILES]


def recorded(gpu: str, model: str) -> Recording:
    return read_recording(Path(FOLDER or "", gpu, f"{FILES[model]}.json.gz")).at_steps(None)


@pytest.mark.parametrize("with_host", [True, False], ids=["as recorded", "names and times alone"])
@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_kernel_time_returns_to_the_ops_that_launched_it(gpu: str, model: str, with_host: bool) -> None:
    graph, full = traced(model), recorded(gpu, model)
    joined = join_recording(full if with_host else without_host(full), graph)
    found = score(full, graph, joined)
    assert joined.forwards == FORWARDS.get(model, 1)
    assert found.attributed >= 0.95
    assert found.right >= 0.95


@pytest.mark.parametrize("model", FILES)
@pytest.mark.parametrize("other", FILES)
def test_names_and_times_of_another_model_do_not_pass(model: str, other: str) -> None:
    """The trace of one model, the recording of another: what --strict looks at tells them apart."""
    graph, recording = traced(model), without_host(recorded("h100", other))
    joined, device = join_recording(recording, graph), find_device("h100-sxm")
    totals = join_totals(joined, graph, device)
    found = (totals.total.flops or 0) / (joined.forwards * (totals.traced_flops or 1))
    attributed = totals.total.device_ns / recording.device_ns
    fast = too_fast(joined, graph, device)
    assert fast is not None
    assert (attributed >= ENOUGH and found >= ENOUGH_FLOPS and fast <= TOO_MUCH) == (model == other)


@pytest.mark.parametrize(("gpu", "model"), RUNS)
def test_every_recorded_kernel_of_a_step_has_its_op(gpu: str, model: str) -> None:
    """The profiler noted an op for each; kernels launched before the step are left out."""
    full = recorded(gpu, model)
    assert all(work.op >= 0 for work in full.work)
    assert all(full.chain_of(work)[-1].input_shapes is not None for work in full.work)
