"""The released `infer` runs under autocast, our phases run in the type of the model: what that changes is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import llm_perf_opt as lpo
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.plugins import make_workload
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.coverage import priced_total
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter


def under_autocast(invoke: Callable[..., object]) -> Callable[..., object]:
    def run(*args: Any) -> object:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return invoke(*args)

    return run


def targets(dtype: str) -> tuple[Target, ...]:
    adapter = DeepSeekOcrTinyAdapter()
    return adapter.targets(make_workload(adapter, image="70x100", mode="base", decode_steps=1, dtype=dtype))


def kinds_of(graph: CallGraph) -> dict[OpKind, int]:
    assert graph.ops is not None
    return {graph.op_kinds[row]: count for row, count in Counter(graph.ops.kind).items()}


def names_of(kinds: dict[OpKind, int]) -> Counter[str]:
    names: Counter[str] = Counter()
    for kind, count in kinds.items():
        names[kind.name] += count
    return names


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_autocast_adds_casts_to_a_model_in_16_bits_and_no_flop(phase: str) -> None:
    plain, cast = (
        kinds_of(WeightlessTracer(device="cuda").trace(target))
        for found in targets("bfloat16")
        if found.phase == phase
        for target in (found, replace(found, invoke=under_autocast(found.invoke)))
    )
    assert priced_total(cast)[0].flops == priced_total(plain)[0].flops > 0
    more = names_of(cast) - names_of(plain)
    assert set(more) == {"aten.to.dtype"}
    assert names_of(plain) - names_of(cast) == Counter()


class Cast(nn.Module):
    """A module that opens autocast itself, as a user wraps a model that is to be traced under it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.layers(x)


def test_a_module_that_opens_autocast_is_traced_under_it() -> None:
    (graph,) = lpo.trace(Cast(), (torch.ones(3, 32),), torch_device="cuda").graphs
    products = [kind for kind in graph.op_kinds if kind.name == "aten.linear.default"]
    assert [(kind.inputs[1].dtype, kind.outputs[0].dtype) for kind in products] == [("bfloat16", "bfloat16")] * 2
