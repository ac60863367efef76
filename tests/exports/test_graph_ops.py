"""An exported graph in the terms of a trace: names, shapes, counts, arguments and shared memory."""

from __future__ import annotations

import torch
from torch import nn

from llm_perf_opt.exports.export_source import graph_ops
from llm_perf_opt.ops.table import price


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.second = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs()
        return (self.first(x) + self.second(x)).reshape(3, 2, 2) * scale.sum()


def test_alike_ops_are_counted_together_and_priced_as_in_a_trace() -> None:
    program = torch.export.export(Layers(), (torch.ones(3, 8),))
    ops = {op.kind.name: op for op in graph_ops(program)}
    linear = ops["aten.linear.default"]
    assert linear.count == 2
    assert [meta.shape for meta in linear.kind.inputs] == [(3, 8), (4, 8), (4,)]
    assert linear.kind.input_names == ("input", "weight", "bias")
    cost = price(linear.kind)
    assert cost is not None
    assert cost.flops == 2 * 3 * 8 * 4


def test_a_region_without_gradients_is_part_of_the_graph() -> None:
    program = torch.export.export(Layers(), (torch.ones(3, 8),))
    assert "aten.abs.default" in {op.kind.name for op in graph_ops(program)}


def test_a_reshape_that_copies_nothing_is_free() -> None:
    program = torch.export.export(Layers(), (torch.ones(3, 8),))
    (reshape,) = [op for op in graph_ops(program) if op.kind.name == "aten.reshape.default"]
    assert reshape.kind.output_aliases == (0,)
    cost = price(reshape.kind)
    assert cost is not None
    assert cost.bytes_moved == 0


def test_checks_of_shapes_are_no_work() -> None:
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float64)

    program = torch.export.export(Casts(), (torch.ones(3),))
    assert not [op for op in graph_ops(program) if "assert" in op.kind.name]
