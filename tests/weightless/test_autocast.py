"""The released `infer` runs under autocast, our phases run in the type of the model: what that changes is counted."""

from __future__ import annotations

from collections import Counter
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
from llm_perf_opt.costs.run_description import casts_of
from llm_perf_opt.harness.tracers.hooks_tracer import HooksTracer
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrTinyAdapter


def targets(**workload: Any) -> tuple[Target, ...]:
    adapter = DeepSeekOcrTinyAdapter()
    return adapter.targets(make_workload(adapter, image="70x100", mode="base", decode_steps=1, **workload))


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
        for asked in ({}, {"autocast": "bfloat16"})
        for target in targets(**asked)
        if target.phase == phase
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
    matmuls = [kind for kind in graph.op_kinds if kind.name == "aten.linear.default"]
    assert [(kind.inputs[1].dtype, kind.outputs[0].dtype) for kind in matmuls] == [("bfloat16", "bfloat16")] * 2


def test_weights_in_32_bits_are_cast_and_the_casts_are_counted_and_told() -> None:
    """A linear layer of 32 x 64 and a batch of 3: weight, bias and input are read in 4 bytes and written in 2."""
    run = lpo.trace(nn.Linear(32, 64), (torch.ones(3, 32),), torch_device="cuda", autocast="bfloat16")
    assert casts_of(run.graphs[0]) == (3, 6 * (64 * 32 + 64 + 3 * 32))
    assert run.graphs[0].workload["autocast"] == "bfloat16"
    told = [note.text for note in run.cost().report().notes if "autocast" in note.text]
    assert any("3 casts" in text for text in told)
    assert casts_of(lpo.trace(nn.Linear(32, 64), (torch.ones(3, 32),)).graphs[0]) == (0, 0)


def test_a_real_run_is_under_the_same_autocast() -> None:
    adapter = DeepSeekOcrTinyAdapter()
    asked = make_workload(adapter, image="70x100", mode="base", decode_steps=0, dtype="float32", autocast="bfloat16")
    (target,) = adapter.targets(asked)
    graph = HooksTracer().trace(target)
    (seen,) = graph.output_metadata["model.layers.0.self_attn.q_proj"]
    assert seen.tensors[0].dtype == "bfloat16"


class Einsums(nn.Module):
    """Relative positions as SAM has them, a product that sums nothing, and a sum of one operand."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.positions = nn.Linear(8, 8), nn.Parameter(torch.ones(4, 5, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.einsum("bhwc,hkc->bhwk", self.queries(x), self.positions),
            torch.einsum("bhwc,hkc", x, self.positions),
            torch.einsum("bhwc,hkc->bhwkc", x, self.positions),
            torch.einsum("hkc->hk", self.positions),
        )


def test_the_operands_of_an_einsum_are_cast_where_torch_casts_them() -> None:
    module, x = Einsums(), torch.ones(2, 4, 3, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        real = [str(output.dtype).removeprefix("torch.") for output in module(x)]
    (graph,) = lpo.trace(module, (x,), autocast="bfloat16").graphs
    assert graph.ops is not None
    kinds = [graph.op_kinds[row] for row in graph.ops.kind]
    assert [kind.outputs[0].dtype for kind in kinds if kind.name == "aten.einsum.default"] == real
    assert real == ["bfloat16", "bfloat16", "float32", "float32"]
