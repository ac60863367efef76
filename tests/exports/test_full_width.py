"""DeepSeek-OCR at its real size: every static part exports, and its FLOPs are those that were recorded."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from llm_perf_opt.api.export import ExportAnswer, export_parts
from llm_perf_opt.core.export_outcome import Check, ExportOptions, Verdict
from llm_perf_opt.exports.torch_lab import TorchLab
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.tracing.origin import Origin
from tests.end_to_end.deepseek_ocr_runs import facts
from tests.exports.tiny_lab import STATIC

pytestmark = pytest.mark.slow

WORKLOAD = DeepSeekOcrWorkload(crops=(2, 3), prompt_tokens=9, dtype="float32")
GLOBAL_VIEW_FLOPS = 1_139_967_033_344


@cache
def run() -> ExportAnswer:
    origin = Origin(name="deepseek-ocr", source=DeepSeekOcrAdapter(), workload=WORKLOAD)
    return export_parts(origin, STATIC, checks=("export",))


def test_every_static_part_exports_at_the_shapes_of_the_run() -> None:
    parts = {part.name: part for part in run().parts}
    assert {part.outcome(Check.EXPORT).verdict for part in parts.values()} == {Verdict.OK}
    assert parts["sam"].inputs == ("pixels: float32[1, 3, 1024, 1024]",)
    assert parts["clip-block"].inputs == ("x: float32[1, 257, 1024]",)
    assert parts["decoder-layer-dense"].inputs[0] == "hidden_states: float32[1, 913, 1280]"


def test_flops_are_those_of_the_trace_and_of_torch() -> None:
    plain = [flops for flops in run().flops if not flops.name.startswith("moe-layer")]
    assert [flops.name for flops in plain if not flops.exported == flops.traced == flops.eager] == []


def test_flops_of_one_view_are_those_recorded_from_the_released_code() -> None:
    flops = {figure.name: figure.exported for figure in run().flops}
    wanted = {"workload": "base-1024", "phase": "prefill"}
    (fact,) = [entry for entry in facts("flops.json")["runs"] if wanted.items() <= entry.items()]
    recorded: dict[str, Any] = {path: sum(by_op.values()) for path, by_op in fact["by_module"].items()}
    assert flops["sam"] == recorded["model.sam_model"]
    assert flops["clip"] == recorded["model.vision_model"]
    assert flops["projector"] == recorded["model.projector"]
    assert flops["vision"] == GLOBAL_VIEW_FLOPS


@pytest.mark.parametrize("name", ["clip-block", "projector", "decoder-layer-dense", "expert", "sam-block-windowed"])
def test_onnxruntime_agrees_at_full_width(name: str) -> None:
    adapter = DeepSeekOcrAdapter()
    (part,) = [part for part in adapter.parts() if part.name == name]
    options = ExportOptions(checks=frozenset({Check.EXPORT, Check.PARITY}))
    found = TorchLab().examine(adapter.targets(WORKLOAD)[0], part, options)
    assert found.parity is not None, found.outcome(Check.PARITY)
    assert found.parity.max_abs_error < 1e-3
