"""What a composite op holds while it runs, held against a real run of the same op; layouts that decide over copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder
from llm_perf_opt.costs.memory.live_memory import live_bytes
from llm_perf_opt.harness.op_watch import LiveStorages
from llm_perf_opt.weightless import Engine

Tensor = torch.Tensor
Forward = Callable[..., object]


def weightless(forward: Forward, *shapes: tuple[int, ...], device: str = "cpu") -> CallGraph:
    engine, builder = Engine(device=device), CallGraphBuilder()
    given = [engine.ghost(*shape) for shape in shapes]  # held by the caller
    with engine.recording(builder):
        engine.run(lambda: forward(*given))
    return builder.finish(model="m", phase="p", tracer="t", workload={}, stages=(), runtime={}, library_versions={})


def predicted(forward: Forward, *shapes: tuple[int, ...], device: str = "cpu") -> int:
    graph = weightless(forward, *shapes, device=device)
    assert graph.ops is not None and graph.storages is not None
    assert graph.problems() == []
    return max(live_bytes(graph.storages, len(graph.ops.kind)))


def measured(forward: Forward, *shapes: tuple[int, ...]) -> int:
    given = [torch.rand(shape) for shape in shapes]
    with torch.no_grad(), LiveStorages() as live:
        forward(*given)
    return live.peak_bytes


def masked_attention(q: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


CASES: dict[str, tuple[Forward, tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda x, w: F.linear(x, w), ((2, 5, 8), (6, 8))),
    "linear with a bias": (lambda x, w, b: F.linear(x, w, b), ((2, 5, 8), (6, 8), (6,))),
    "linear of a transposed input": (lambda x, w, b: F.linear(x.transpose(1, 2), w, b), ((2, 8, 5), (6, 8), (6,))),
    "matmul of matrices": (lambda x, y: x @ y, ((5, 8), (8, 6))),
    "matmul with a transposed stack": (lambda x, y: x @ y.transpose(2, 3), ((2, 3, 5, 8), (2, 3, 6, 8))),
    "matmul that copies": (lambda x, y: x @ y.transpose(1, 2), ((2, 3, 5, 8), (2, 8, 3, 6))),
    "matmul that broadcasts": (lambda x, y: x @ y, ((2, 3, 5, 8), (8, 6))),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), ((4, 5, 8),)),
    "rms norm": (lambda x: F.rms_norm(x, (8,)), ((4, 5, 8),)),
    "group norm": (lambda x: F.group_norm(x, 2), ((2, 4, 5, 5),)),
    "softmax": (lambda x: x.softmax(-1), ((4, 5, 8),)),
    "softmax in a wider dtype": (lambda x: x.softmax(-1, dtype=torch.float64), ((4, 5, 8),)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((2, 3, 4), (2, 5, 4))),
    "einsum that permutes": (lambda x, y: torch.einsum("bhwc,hkc->bhwk", x, y), ((2, 5, 6, 8), (5, 7, 8))),
    "convolution": (lambda x, w: F.conv2d(x, w), ((2, 3, 9, 9), (4, 3, 3, 3))),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), ((1, 3, 8, 8),)),
    "bicubic interpolation": (lambda x: F.interpolate(x, size=(5, 5), mode="bicubic"), ((1, 3, 8, 8),)),
    "fused attention": (lambda q: F.scaled_dot_product_attention(q, q, q), ((2, 3, 10, 8),)),
    "fused attention, causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), ((2, 3, 10, 8),)),
    "fused attention with a mask": (masked_attention, ((2, 3, 10, 8),)),
    "attention without a fused kernel": (
        lambda q, v: F.scaled_dot_product_attention(q, q, v, is_causal=True),
        ((2, 3, 10, 8), (2, 3, 10, 6)),
    ),
    "attention of three dimensions": (lambda q: F.scaled_dot_product_attention(q, q, q), ((3, 10, 8),)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_holds_as_much_as_in_a_real_run(name: str) -> None:
    forward, shapes = CASES[name]
    assert predicted(forward, *shapes) == measured(forward, *shapes)


def test_scratch_is_gone_after_its_op_and_is_no_activation() -> None:
    graph = weightless(lambda x, y: (x @ y.transpose(1, 2)) + 1, (2, 3, 5, 8), (2, 8, 3, 6))
    assert graph.storages is not None and graph.ops is not None
    (scratch,) = [row for row, origin in enumerate(graph.storages.origin) if origin == "scratch"]
    assert graph.storages.bytes[scratch] == 4 * 2 * 3 * 8 * 6  # the copy of the right side
    names = [graph.op_kinds[kind].name for kind in graph.ops.kind]
    assert names.index("aten.matmul.default") == graph.storages.born_op[scratch]
    assert graph.storages.freed_op[scratch] == graph.storages.born_op[scratch] + 1
    assert scratch not in (*graph.ops.input_storages, *graph.ops.output_storages)


@pytest.mark.parametrize("layout", ["row by row", "heads first", "cut from a larger tensor"])
def test_attention_keeps_the_layout_of_its_queries(layout: str) -> None:
    """Whether the transpose that follows is a copy depends on it, and so does the peak."""

    def forward(x: Tensor) -> Tensor:
        q = {
            "row by row": lambda: x.view(2, 9, 3, 8),
            "heads first": lambda: x.view(2, 3, 9, 8).transpose(1, 2),
            "cut from a larger tensor": lambda: x.view(2, 9, 3, 8)[:, :5].transpose(1, 2),
        }[layout]()
        return F.scaled_dot_product_attention(q, q, q)

    real = forward(torch.rand(2 * 9 * 3 * 8)).stride()
    engine = Engine(device="cpu")
    assert engine.run(lambda: forward(engine.ghost(2 * 9 * 3 * 8)).stride()) == real


def test_on_cuda_the_kernel_without_scores_takes_what_the_cpu_cannot_fuse() -> None:
    forward, shapes = CASES["attention without a fused kernel"]
    output_bytes = 4 * 2 * 3 * 10 * 6
    assert predicted(forward, *shapes, device="cuda") == output_bytes
    assert predicted(forward, *shapes, device="cpu") > 2 * output_bytes
