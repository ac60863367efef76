"""Every answer: its figures against numbers worked out by hand or known from elsewhere, and what all answers can do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.api.graph import graph_answer
from llm_perf_opt.api.memory import memory_answer
from llm_perf_opt.api.stages import stages_answer
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.export_outcome import Check, Verdict
from llm_perf_opt.core.hardware import find_device
from tests.costs.small_run import ACTIVATE_BYTES, PROJECT_BYTES, PROJECT_FLOPS, small_run

H100 = find_device("h100-sxm")
SIDE = 8192
MATMUL_FLOPS = 2 * SIDE**3


class TwoMatmuls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.second = nn.Linear(16, 4, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(self.first(rows).relu())
        return hidden


def two_matmuls(rows: int) -> lpo.Trace:
    return lpo.trace(TwoMatmuls(), (torch.zeros(rows, 8),))


def two_matmuls_flops(rows: int) -> int:
    return 2 * rows * (8 * 16 + 16 * 4)


@cache
def one_matmul() -> lpo.Trace:
    with torch.device("meta"):
        layer = nn.Linear(SIDE, SIDE, bias=False, dtype=torch.bfloat16)
    return lpo.trace(layer, (torch.zeros(SIDE, SIDE, dtype=torch.bfloat16),))


@cache
def ocr() -> lpo.Trace:
    return lpo.trace("deepseek-ocr", mode="tiny")


ANSWERS: dict[str, Callable[[], Answer]] = {
    "stages": lambda: ocr().stages(),
    "cost": lambda: ocr().cost(),
    "memory": lambda: ocr().memory("h100-sxm"),
    "predict": lambda: ocr().predict("h100-sxm"),
    "graph": lambda: ocr().graph("decode"),
    "export": lambda: two_matmuls(3).export("first", checks=["export"], phase="forward"),
    "compare": lambda: two_matmuls(3).compare(two_matmuls(4), budgets=["total.flops<=+1%"]),
    "report": lambda: two_matmuls(3).report(device="h100-sxm"),
    "devices": lpo.devices,
    "device": lambda: lpo.device("h100-sxm"),
    "cluster": lambda: lpo.cluster("4x8 h100-sxm"),
    "ranks": lambda: lpo.trace("deepseek-ocr-tiny", mode="tiny", tp=2).per_rank("2x h100-sxm"),
    "known_models": lpo.known_models,
    "doctor": lpo.doctor,
}
made = cache(lambda name: ANSWERS[name]())


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_becomes_plain_values_that_json_keeps(name: str) -> None:
    plain = made(name).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    public = {field.name for field in fields(made(name)) if not field.name.startswith("_")}
    assert public <= plain.keys()
    assert not [key for key in plain if key.startswith("_")]


@pytest.mark.parametrize("name", ANSWERS)
def test_reading_figures_renders_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = made(name)

    def no_report(self: Answer) -> Any:
        raise AssertionError("a report was built")

    monkeypatch.setattr(type(answer), "report", no_report)
    assert answer.to_dict()


WORKED_OUT = {  # what an answer knows before it is shown, by where its report would work it out
    "stages": [
        "llm_perf_opt.costs.stage_costs.stage_costs",
        "llm_perf_opt.costs.necessary.stage_needs.necessary_by_stage",
    ],
    "memory": ["llm_perf_opt.serving.fit.rank_memory"],
    "predict": [
        "llm_perf_opt.timing.prediction_report.predict",
        "llm_perf_opt.serving.fit.rank_memory",
        "llm_perf_opt.costs.memory.need._phase",
    ],
    "compare": ["llm_perf_opt.comparisons.side.stage_costs"],
}


@pytest.mark.parametrize("name", WORKED_OUT)
def test_showing_an_answer_works_nothing_out_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = made(name)
    for function in WORKED_OUT[name]:
        monkeypatch.setattr(function, lambda *args: pytest.fail("worked out again"))
    assert answer.report().tables


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_shows_itself(name: str) -> None:
    answer = made(name)
    assert len(repr(answer)) > 20
    shown = answer._repr_html_()
    assert shown.startswith("<")
    assert len(shown.encode()) <= 60_000
    assert answer.report().title


@pytest.mark.parametrize("name", ANSWERS)
def test_its_first_table_holds_raw_numbers(name: str) -> None:
    table, frame = made(name).report().tables[0], made(name).to_pandas()
    assert list(frame.columns) == [column.name for column in table.columns]
    for column, cells in zip(table.columns, zip(*table.rows, strict=True), strict=True):
        found = frame[column.name].tolist()
        assert [None if value != value else value for value in found] == list(cells)


@pytest.mark.parametrize("name", ANSWERS)
def test_it_is_saved_and_nothing_is_overwritten_unasked(name: str, tmp_path: Path) -> None:
    path = made(name).save(tmp_path / "new" / "answer.html")
    with pytest.raises(PerfOptError, match="force=True"):
        made(name).save(path)
    assert made(name).save(path, force=True).stat().st_size > 100


def test_stages_hold_the_work_of_a_run_by_hand() -> None:
    answer = stages_answer((small_run(),))
    assert [(stage.phase, stage.name) for stage in answer.stages] == [("prefill", "vision"), ("prefill", "prefill")]
    assert answer.flops == 3 * PROJECT_FLOPS
    assert answer.bytes_moved == 3 * PROJECT_BYTES + 4 * ACTIVATE_BYTES
    assert (answer.parameters, answer.unpriced_ops) == (3 * 64, 0)
    assert answer.to_dict()["total"]["macs"] == 3 * PROJECT_FLOPS // 2


def test_an_op_without_a_price_is_counted_and_named() -> None:
    answer = stages_answer((small_run(with_unpriced=True),))
    assert answer.unpriced_ops == 1
    assert [op.name for op in answer.unpriced] == ["vendor.fused.default"]


def test_what_a_tracer_cannot_see_is_none() -> None:
    blind = replace(small_run(), ops=None, storages=None)
    stages, memory = stages_answer((blind,)), memory_answer((blind,), H100)
    assert (stages.flops, stages.bytes_moved, stages.unpriced_ops, stages.necessary_flops) == (None,) * 4
    assert (memory.total_bytes, memory.fits, memory.serving) == (None, None, None)
    assert stages.to_dict()["flops"] is None


def test_cost_is_the_sum_over_stages_and_two_sources_agree_on_it() -> None:
    answer = two_matmuls(3).cost(["counted", "torch-counter"])
    assert answer.flops == answer.necessary_flops == two_matmuls_flops(3)
    assert answer.parameters == 8 * 16 + 16 * 4
    assert (answer.unpriced_ops, answer.stopped) == (0, {})
    assert (answer.differences, answer.unexplained, answer.missing) == ((), (), ())
    assert answer.sources == ("counted", "torch-counter")
    (stage,) = answer.stages
    assert {source.source: source.flops for source in stage.sources} == {
        "counted": two_matmuls_flops(3),
        "torch-counter": two_matmuls_flops(3),
    }


def test_the_released_model_has_its_published_size() -> None:
    answer = ocr().cost()
    assert answer.parameters == 3_336_106_240
    assert answer.unexplained == ()
    assert answer.flops == ocr().stages().flops


def test_a_source_that_says_nothing_is_a_reason_and_no_zero() -> None:
    answer = lpo.cost(TwoMatmuls(), (torch.zeros(3, 8),), sources=["closed-form"])
    assert (answer.flops, answer.bytes_moved, answer.memory, answer.unpriced_ops) == (None,) * 4
    ((source, _, _, reason),) = answer.missing
    assert source == "closed-form"
    assert reason


def test_nothing_is_traced_for_closed_forms_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = ocr().stages().flops
    monkeypatch.setattr("llm_perf_opt.tracing.traced_phases.TRACERS", None)
    assert lpo.cost("deepseek-ocr", sources=["closed-form"], mode="tiny").flops == traced


def test_a_phase_that_raises_is_unknown_and_the_others_are_counted() -> None:
    class Broken(TwoMatmuls):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.first(rows)
            raise RuntimeError("no second matmul today")

    broken, inputs = Broken(), (torch.zeros(3, 8),)
    with pytest.raises(PerfOptError, match="no second matmul today"):
        lpo.trace(broken, inputs)
    traced = lpo.trace(broken, inputs, keep_partial=True)
    assert traced.graphs[0].stopped_in == ""
    answer = traced.cost()
    assert answer.flops is None
    assert "no second matmul today" in answer.stopped["forward"]
    with pytest.raises(PerfOptError, match="stopped half-way"):
        traced.predict("h100-sxm")


def test_memory_is_that_of_the_worst_moment_and_decides_the_fit() -> None:
    needed = 3 * 256 + 256 + 128 + 4 * 128  # weights, a buffer, the input, the live tensors at the peak
    graphs = (small_run(),)
    assert memory_answer(graphs).total_bytes == needed
    assert memory_answer(graphs).fits is None
    assert memory_answer(graphs, replace(H100, memory_bytes=needed)).fits is True
    assert memory_answer(graphs, replace(H100, memory_bytes=needed - 1)).fits is False


def test_the_cache_and_the_server_are_told_where_the_run_decodes() -> None:
    answer = ocr().memory("h100-sxm")
    assert answer.cache is not None
    assert answer.cache.bytes_per_token == 2 * 2 * 12 * 1280  # keys and values of 12 layers, 10 heads of 128, 2 bytes
    assert answer.serving is not None
    assert (answer.fits, answer.serving.fits) == (True, True)


def test_a_large_matmul_is_bound_by_compute_at_the_peak_of_the_data_sheet() -> None:
    answer = one_matmul().predict("h100-sxm")
    (stage,) = answer.stages
    assert stage.lower_bound_s == answer.lower_bound_s == pytest.approx(MATMUL_FLOPS / 989e12, rel=1e-12)
    assert (stage.launches, stage.bound_by) == (1, "compute")
    assert stage.lower_bound_s <= stage.low_s <= stage.high_s
    assert answer.needed_bytes == 3 * 2 * SIDE**2  # weights, rows and results of two bytes each
    assert (answer.fits, answer.serving) == (True, None)


def test_times_come_from_a_device_or_a_calibration_and_not_both() -> None:
    with pytest.raises(UsageError, match="and not both"):
        one_matmul().predict()
    with pytest.raises(UsageError, match="and not both"):
        one_matmul().predict("h100-sxm", calibration="machine.json")


def test_boxes_add_up_to_the_run() -> None:
    answer = graph_answer(two_matmuls(3).graphs[0])
    assert answer.view.totals.flops == two_matmuls_flops(3)
    boxes = answer.to_pandas().set_index("box")
    assert boxes.loc["TwoMatmuls @ (root)", "FLOPs"] == two_matmuls_flops(3)
    assert boxes.loc["Linear @ first", "FLOPs"] == 2 * 3 * 8 * 16


def test_an_exported_part_costs_what_was_traced() -> None:
    answer = two_matmuls(3).export("first", checks=["export"], phase="forward")
    ((part,), (flops,)) = answer.parts, answer.flops
    assert part.outcome(Check.EXPORT).verdict is Verdict.OK
    assert flops.exported == flops.traced == flops.eager == 2 * 3 * 8 * 16
    assert (answer.unpriced, answer.unexplained, answer.files) == ((), (), ())


def test_two_runs_alike_have_no_differences_and_a_larger_one_breaks_its_budget() -> None:
    same = two_matmuls(3).compare(two_matmuls(3))
    assert (same.differences, same.unexplained, same.budgets_broken) == (0, 0, ())
    more = two_matmuls(3).compare(two_matmuls(4), budgets=["total.flops<=+1%", "total.parameters=="])
    assert more.budgets_broken == ("total.flops<=+1%",)
    assert more.differences > 0
    assert more.total.left is not None and more.total.right is not None
    assert (more.total.left.flops, more.total.right.flops) == (two_matmuls_flops(3), two_matmuls_flops(4))


def test_the_one_report_holds_the_other_answers() -> None:
    answer = two_matmuls(3).report(device="h100-sxm")
    assert answer.cost.flops == two_matmuls_flops(3)
    assert answer.device == H100
    assert answer.exports is None
    titles = [chapter.title for chapter in answer.report().chapters]
    assert titles == [
        "What does it cost?",
        f"How fast is the traced code on {H100.name}?",
        "What should I change first on h100-sxm?",
        "Does it fit?",
        "What runs?",
    ]


def test_a_saved_trace_answers_the_same(tmp_path: Path) -> None:
    ocr().save(tmp_path)
    again = lpo.load(tmp_path)
    assert again.origin is None
    assert again.stages().to_dict() == ocr().stages().to_dict()
    assert again.memory().to_dict() == ocr().memory().to_dict()
    assert [stage.flops for stage in again.cost().stages] == [stage.flops for stage in ocr().cost().stages]
    assert again.predict("h100-sxm").to_dict() == ocr().predict("h100-sxm").to_dict()
    with pytest.raises(UsageError, match="has no model that could run"):
        again.export()


def test_devices_are_in_base_units() -> None:
    frame = lpo.devices().to_pandas().set_index("id")
    assert frame.loc["h100-sxm", "bf16"] == 989 * 10**12
    assert frame.loc["h100-sxm", "memory"] == 81559 * 2**20
    assert lpo.device("h100-sxm").device == H100


def test_models_and_what_is_installed() -> None:
    assert "deepseek-ocr" in lpo.known_models().models
    found = {one.need.distribution: one.version for one in lpo.doctor().distributions}
    assert lpo.doctor().is_complete
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
