"""Costs of a run's pages are counted from traces of the same pages, and follow the closed forms where those exist."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from llm_perf_opt.api.profile_preparation import PageTraces, find_profiled_device
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import device_text
from llm_perf_opt.core.hardware.calibration import measured_device
from llm_perf_opt.core.measurement import PageMeasurement
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.measurements.profile import join_run
from llm_perf_opt.measurements.profile.request import DeviceChoice, StaticChoice
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.measurements.profile.made_runs import DEVICE, made_page, made_pass
from tests.timing.made_calibrations import calibration, matmul_seconds, table

STEPS = 3
CONTEXTS = {20: 294, 520: 794}  # prompt tokens -> with the 273 tokens of a page and the first one
PER_TOKEN, PER_TOKEN_AND_CONTEXT = 1_148_192_256, 61_440  # the released model, eager: FLOPs of one decode step


def full_size_page(prompt_tokens: int) -> PageMeasurement:
    workload = DeepSeekOcrWorkload(image="1240x1754", mode="base", prompt_tokens=prompt_tokens, decode_steps=STEPS)
    return replace(
        made_page(made_pass(20_000, 10_000, (3_000, 3_000, 3_000))),
        workload=asdict(workload),
        context_tokens=CONTEXTS[prompt_tokens],
        decode_steps=STEPS,
        input_shapes=((1, CONTEXTS[prompt_tokens]), (1, 3, 1024, 1024)),
    )


@pytest.mark.slow
def test_decode_mfu_follows_the_context_as_the_closed_form_says() -> None:
    pages = {prompt: full_size_page(prompt) for prompt in CONTEXTS}
    traces = PageTraces(DeepSeekOcrAdapter(), "deepseek-ocr", "cpu")
    mfu = {}
    for prompt, page in pages.items():
        (run,) = [join_run([page], traces.costs([page]), DEVICE, "bfloat16")]
        (decode,) = [stage for stage in run.stages if stage.name == "decode"]
        contexts = [CONTEXTS[prompt] + step + 1 for step in range(STEPS)]
        expected = sum(PER_TOKEN + PER_TOKEN_AND_CONTEXT * context for context in contexts)
        assert decode.flops == expected
        assert decode.efficiency is not None and decode.efficiency.mfu is not None
        assert decode.efficiency.mfu == pytest.approx(expected / 9.0 / DEVICE.peak_flops_per_s["bf16"], rel=1e-9)
        mfu[prompt] = decode.efficiency.mfu
    more = STEPS * PER_TOKEN_AND_CONTEXT * 500 / 9.0 / DEVICE.peak_flops_per_s["bf16"]
    assert mfu[520] - mfu[20] == pytest.approx(more, rel=1e-6)


class Counting(DeepSeekOcrAdapter):
    """The tiny twin, and every workload that its targets were asked for."""

    def __init__(self) -> None:
        super().__init__(DeepSeekOcrConfig.tiny(), name="twin")
        self.asked: list[Workload] = []

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        self.asked.append(workload)
        return super().targets(workload)


def test_pages_with_inputs_of_equal_shapes_are_traced_once() -> None:
    page, adapter = full_size_page(20), Counting()
    other_size = replace(page, workload={**page.workload, "image": "900x1200"})
    first, second = PageTraces(adapter, "twin", "cpu").costs([page, other_size])
    assert first is second
    assert len(adapter.asked) == 1


def test_pages_with_inputs_of_other_shapes_are_traced_each() -> None:
    page, adapter = full_size_page(20), Counting()
    other_workload = {**page.workload, "image": "900x1200"}
    other = replace(page, workload=other_workload, input_shapes=((1, 294), (1, 3, 512, 512)))
    PageTraces(adapter, "twin", "cpu").costs([page, other])
    assert len(adapter.asked) == 2


def test_costs_and_static_report_come_from_one_trace() -> None:
    page, adapter = full_size_page(20), Counting()
    traces = PageTraces(adapter, "twin", "cpu")
    (costs,) = traces.costs([page])
    static = traces.static(page.workload, {})
    assert len(adapter.asked) == 1
    assert costs is not None
    assert static.flops == sum(work.flops for work in costs.works.values())


def test_the_static_report_may_be_of_other_sizes() -> None:
    traces = PageTraces(DeepSeekOcrAdapter(DeepSeekOcrConfig.tiny()), "twin", "cpu")
    static = traces.static(full_size_page(20).workload, StaticChoice(mode="tiny", decode_steps=1).options())
    assert (static.workload["mode"], static.workload["image"]) == ("tiny", "1240x1754")


def test_a_workload_survives_the_file() -> None:
    workload = DeepSeekOcrWorkload(image="9x9", crops=(2, 3), decode_steps=4)
    stored = {**asdict(workload), "crops": [2, 3]}  # JSON has no tuples
    assert make_workload("deepseek-ocr", **stored) == workload


def test_a_reported_device_may_be_unknown_and_a_named_one_may_not() -> None:
    environment = {"device": {"reported_name": "A processor that nobody listed"}}
    assert find_profiled_device(DeviceChoice(), environment, "bfloat16") is None
    h100 = find_profiled_device(DeviceChoice(name="h100-sxm"), environment, "bfloat16")
    assert h100 is not None and h100.id == "h100-sxm"
    with pytest.raises(UsageError, match="abacus"):
        find_profiled_device(DeviceChoice(name="abacus"), environment, "bfloat16")


@pytest.mark.parametrize("is_named", [True, False], ids=["by its id", "by what it reports"])
def test_a_machine_is_held_against_a_calibration_with_as_many_threads(tmp_path: Path, is_named: bool) -> None:
    ticks = {"rows": (1, 64), "columns": (640,), "depth": (640,)}
    machine = measured_device(
        calibration(
            table("matmul", "bfloat16", ticks, matmul_seconds),
            table("copy", "bfloat16", {"elements": (16,)}, lambda count: count * 1e-9),
        )
    )
    file = tmp_path / "machine.toml"
    file.write_text(device_text(machine), "utf-8")
    choice = DeviceChoice(devices=str(file), name=machine.id if is_named else None)
    seen = {"device": {"reported_name": "A Machine (TM) 9000"}}
    assert find_profiled_device(choice, {**seen, "torch": {"threads": 2}}, "bfloat16") == machine
    with pytest.raises(UsageError, match="is 1 in the run and 2 in the calibration") as caught:
        find_profiled_device(choice, {**seen, "torch": {"threads": 1}}, "bfloat16")
    assert "run.threads=2" in caught.value.fix
    assert "--threads 1" in caught.value.fix
