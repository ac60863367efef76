"""The rules are held against torch's own strides: what is called scattered must be so in memory."""

from __future__ import annotations

import torch

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.timing.calibrated_rates import scattered_inputs

VIEWS, CHANNELS, SIDE = 1, 6, 4


class Stream(torch.nn.Module):
    """A convolution read with its channels last, a residual sum, a norm, and the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, CHANNELS, kernel_size=2, stride=2)
        self.norm = torch.nn.LayerNorm(CHANNELS)
        self.last = torch.nn.Conv2d(CHANNELS, 2, kernel_size=1)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = self.patches(pixels).permute(0, 2, 3, 1)
        positions = torch.ones(VIEWS, SIDE, SIDE, CHANNELS)
        summed = rows + positions
        normed = self.norm(summed)
        again = summed + normed
        return rows, summed, normed, again, self.last(again.permute(0, 3, 1, 2))


def traced() -> CallGraph:
    target = Target(
        model="stream",
        phase="run",
        workload={},
        build=Stream,
        invoke=lambda model: model(torch.ones(VIEWS, 3, 2 * SIDE, 2 * SIDE)),
    )
    return WeightlessTracer(device="cpu").trace(target)


def seen(graph: CallGraph) -> dict[str, list[set[int]]]:
    found: dict[str, list[set[int]]] = {}
    assert graph.ops is not None
    for row, scattered in zip(graph.ops.kind, scattered_inputs(graph), strict=True):
        found.setdefault(graph.op_kinds[row].name.split(".")[1], []).append(set(scattered))
    return found


def test_the_residual_stream_stays_scattered_until_it_is_turned_back() -> None:
    found = seen(traced())
    assert found["add"] == [{0}, {0}]
    assert found["layer_norm"] == [{0}]
    assert found["conv2d"] == [set(), set()]


def test_torch_lays_the_same_tensors_out_that_way() -> None:
    with torch.no_grad():
        rows, summed, normed, again, _ = Stream()(torch.ones(VIEWS, 3, 2 * SIDE, 2 * SIDE))
    assert [tensor.stride(-1) == 1 for tensor in (rows, summed, normed, again)] == [False, False, True, False]
    assert again.permute(0, 3, 1, 2).is_contiguous()
