"""Our prices against torch's own flop counter, and composite ops against the primitive ones they turn into."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from llm_perf_opt.ops.table import price
from tests.costs.recorded_kinds import recorded_kinds
from tests.examples import examples

sizes = st.integers(1, 6)
patient = settings(deadline=None, max_examples=examples(50))  # the first run of a kernel is slow
ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
)


def flops_of(run: Callable[[], object], *, composites: bool) -> int:
    total = 0
    for kind in recorded_kinds(run, composites=composites):
        cost = price(kind)
        assert cost is not None, kind.name
        total += cost.flops
    return total


def agree(run: Callable[[], object]) -> None:
    """Taken whole, taken apart, and counted by torch, the run costs the same."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    assert flops_of(run, composites=True) == flops_of(run, composites=False) == counter.get_total_flops()


@given(sizes, sizes, sizes, sizes)
@patient
def test_matmuls(batch: int, rows: int, inner: int, columns: int) -> None:
    left, right = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
    agree(lambda: left[0] @ right[0])
    agree(lambda: torch.bmm(left, right))
    agree(lambda: torch.addmm(torch.randn(columns), left[0], right[0]))
    agree(lambda: torch.baddbmm(torch.randn(batch, 1, columns), left, right))
    agree(lambda: torch.matmul(left[:, None], right))
    agree(lambda: F.linear(left, right[0].T, torch.randn(columns)))


@given(st.data())
@patient
def test_convolutions(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    groups = data.draw(st.integers(1, 3))
    channels_in, channels_out = groups * data.draw(sizes), groups * data.draw(sizes)
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    spatial = [side * 2 + data.draw(sizes) for side in kernel]
    options = {"stride": data.draw(st.integers(1, 3)), "dilation": data.draw(st.integers(1, 2)), "groups": groups}
    image = torch.randn(data.draw(sizes), channels_in, *spatial)
    bias = torch.randn(channels_out) if data.draw(st.booleans()) else None
    forward = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    agree(lambda: forward(image, torch.randn(channels_out, channels_in // groups, *kernel), bias, **options))
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    agree(lambda: transposed(image, torch.randn(channels_in, channels_out // groups, *kernel), bias, **options))


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map("".join), st.data())
@patient
def test_einsum_step_by_step(first: str, data: st.DataObject) -> None:
    term = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map("".join)
    terms = [first, *data.draw(st.lists(term, min_size=1, max_size=3))]
    present = sorted(set("".join(terms)))
    result = "".join(data.draw(st.lists(st.sampled_from(present), unique=True)))
    size = {index: data.draw(st.integers(1, 4)) for index in present}
    tensors = [torch.randn([size[index] for index in indices]) for indices in terms]
    agree(lambda: torch.ops.aten.einsum(f"{','.join(terms)}->{result}", tensors))


@given(sizes, sizes, sizes, sizes, sizes, sizes)
@patient
def test_fused_attention(batch: int, heads: int, queries: int, keys: int, width: int, value_width: int) -> None:
    """Torch has no formula for the CPU kernel, so its formulas for the other backends are the source."""
    query, key = torch.randn(batch, heads, queries, width), torch.randn(batch, heads, keys, width)
    value = torch.randn(batch, heads, keys, value_width)
    expected = {flop_registry[op](query, key, value, out_val=None) for op in ATTENTION}
    assert expected == {2 * batch * heads * queries * keys * (width + value_width)}
    assert {flops_of(lambda: F.scaled_dot_product_attention(query, key, value), composites=True)} == expected


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_meet_each_weight_at_each_step(layer: type[torch.nn.RNNBase], bidirectional: bool) -> None:
    model = layer(5, 7, num_layers=2, bidirectional=bidirectional)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    steps = torch.randn(4, 3, 5)
    assert flops_of(lambda: model(steps), composites=True) == 2 * 4 * 3 * matrices


@given(sizes, sizes, sizes, sizes)
@patient
def test_a_convolution_and_its_gradients(batch: int, channels: int, outputs: int, side: int) -> None:
    image, weight = torch.randn(batch, channels, side + 2, side + 2), torch.randn(outputs, channels, 3, 3)
    gradient = torch.randn(batch, outputs, side, side)
    arguments = (gradient, image, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    agree(lambda: torch.ops.aten.convolution_backward(*arguments))


def test_torch_hides_what_it_cannot_price_and_we_do_not() -> None:
    """The two holes of torch's counter: fused attention on CPU and the grouped matmul."""
    query = torch.randn(1, 2, 4, 8)
    rows, experts = torch.randn(6, 8), torch.randn(3, 8, 16)
    offsets = torch.tensor([1, 3, 6], dtype=torch.int32)
    runs = {
        4 * 2 * 4 * 4 * 8: lambda: F.scaled_dot_product_attention(query, query, query),
        2 * 6 * 8 * 16: lambda: torch._grouped_mm(rows.bfloat16(), experts.bfloat16(), offsets),
    }
    for flops, run in runs.items():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == 0
        assert flops_of(run, composites=True) == flops


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64", "float8_e4m3fn", "bool"])
def test_bytes_follow_torch_element_sizes(dtype: str) -> None:
    source = torch.empty(6, 4, dtype=getattr(torch, dtype))
    cost = price(recorded_kinds(lambda: source.clone())[0])
    assert cost is not None
    assert cost.bytes_moved == 2 * math.prod(source.shape) * source.element_size()
