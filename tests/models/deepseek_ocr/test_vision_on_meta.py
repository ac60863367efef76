"""At full size, on meta tensors: every vision call of the facts, with its shapes and its FLOPs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.blueprint import DeepseekOCRForCausalLM
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from tests.models.deepseek_ocr.facts import fact
from tests.models.deepseek_ocr.forward_watch import ForwardWatch

VISION = ("model.sam_model", "model.vision_model", "model.projector")
PREFILLS = [run for run in fact("flops")["runs"] if run["phase"] == "prefill"]


@pytest.fixture(scope="module")
def model() -> DeepseekOCRForCausalLM:
    with torch.device("meta"):
        return DeepseekOCRForCausalLM(DeepSeekOcrConfig()).to(torch.bfloat16)


def encode(model: DeepseekOCRForCausalLM, workload: dict[str, Any]) -> ForwardWatch:
    columns, rows = workload["crops"]
    tiles, side = columns * rows, workload["base_size"]
    with torch.no_grad(), ForwardWatch().on(model) as watch:
        if tiles > 1:
            model.model.encode(torch.empty(tiles, 3, 640, 640, dtype=torch.bfloat16, device="meta"))
        model.model.encode(torch.empty(1, 3, side, side, dtype=torch.bfloat16, device="meta"))
    return watch


@pytest.mark.parametrize("run", PREFILLS, ids=lambda run: run["workload"])
def test_flops_of_every_vision_module(model: DeepseekOCRForCausalLM, run: dict[str, Any]) -> None:
    watch = encode(model, run)
    expected = {path: sum(ops.values()) for path, ops in run["by_module"].items() if path.startswith(VISION)}
    assert len(expected) == 28
    assert {path: watch.flops[path] for path in expected} == expected


@pytest.mark.parametrize("name", ["callgraph-base", "callgraph-gundam-2x3"])
def test_calls_edges_and_shapes_of_every_vision_module(model: DeepseekOCRForCausalLM, name: str) -> None:
    recorded = fact(name)
    watch = encode(model, recorded["workload"])
    prefill = recorded["prefill"]
    assert watch.calls == {path: count for path, count in prefill["call_counts"].items() if path.startswith(VISION)}
    assert watch.edges == {edge: count for edge, count in prefill["edges"].items() if edge.startswith(VISION)}
    assert watch.io == {path: io for path, io in prefill["io"].items() if path.startswith(VISION)}
