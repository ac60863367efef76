"""A module that switches autocast off for the device of its input exports on the meta device too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_perf_opt.exports.export_source import graph_ops
from llm_perf_opt.exports.part_under_test import autocast_knows_meta


class WithoutAutocast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type=x.device.type, enabled=False):
            return x @ x


def test_the_region_is_part_of_the_graph() -> None:
    x = torch.empty(3, 3, device="meta")
    with torch.no_grad(), autocast_knows_meta():
        program = torch.export.export(WithoutAutocast(), (x,))
    assert [op.kind.name for op in graph_ops(program)] == ["aten.matmul.default"]


def test_autocast_is_as_before_afterwards() -> None:
    before = torch.autocast.__init__
    with pytest.raises(KeyError), autocast_knows_meta():
        raise KeyError
    assert torch.autocast.__init__ is before
