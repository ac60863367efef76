"""What the engine writes down: every op once, with its module, its tensors, its memory and the time it lived."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.callgraph import CallGraph, CallGraphBuilder
from llm_perf_opt.weightless import Engine


def record(forward: Callable[[Engine], object], **options: str) -> CallGraph:
    engine, builder = Engine(**options), CallGraphBuilder()  # type: ignore[arg-type]
    with engine.recording(builder):
        result = engine.run(lambda: forward(engine))
    del result
    return builder.finish(
        model="m", phase="p", tracer="weightless", workload={}, stages=(), runtime={}, library_versions={}
    )


def names(graph: CallGraph) -> list[str]:
    assert graph.ops is not None
    return [graph.op_kinds[row].name for row in graph.ops.kind]


def test_composite_ops_arrive_whole_and_once() -> None:
    def forward(engine: Engine) -> torch.Tensor:
        x = nn.functional.linear(engine.ghost(2, 4), engine.ghost(3, 4), engine.ghost(3))
        x = nn.functional.layer_norm(x, (3,))
        q = x.view(1, 1, 2, 3)
        return nn.functional.scaled_dot_product_attention(q, q, q)

    assert names(record(forward)) == [
        "aten.linear.default",
        "aten.layer_norm.default",
        "aten.view.default",
        "aten.scaled_dot_product_attention.default",
    ]


def test_a_kind_says_what_a_price_needs() -> None:
    graph = record(lambda e: nn.functional.conv2d(e.ghost(1, 4, 8, 8), e.ghost(6, 2, 3, 3), stride=2, groups=2))
    (kind,) = graph.op_kinds
    assert kind.input_names == ("input", "weight")
    assert [meta.shape for meta in kind.inputs] == [(1, 4, 8, 8), (6, 2, 3, 3)]
    assert [meta.shape for meta in kind.outputs] == [(1, 6, 3, 3)]
    assert kind.arguments["stride"] == [2, 2]
    assert kind.arguments["groups"] == 2


def test_a_composite_without_a_formula_carries_its_parts() -> None:
    graph = record(lambda e: torch.einsum("bij,bkj->bik", e.ghost(2, 3, 4), e.ghost(2, 5, 4)))
    (kind,) = graph.op_kinds
    assert kind.name == "aten.einsum.default"
    assert "aten.bmm.default" in [part.name for part in kind.parts]


def test_a_matmul_of_stacks_carries_the_copies_of_transposed_heads() -> None:
    """Of two samples with four heads, tokens and heads swapped: one stride cannot step through both."""

    def heads(engine: Engine, samples: int) -> torch.Tensor:
        return engine.ghost(samples, 6, 4, 8).transpose(1, 2)

    def parts(samples: int) -> list[str]:
        graph = record(lambda e: heads(e, samples) @ heads(e, samples).transpose(2, 3))
        (kind,) = [kind for kind in graph.op_kinds if kind.name == "aten.matmul.default"]
        return [part.name for part in kind.parts if part.name != "aten._unsafe_view.default"]

    assert parts(2) == ["aten.clone.default", "aten.clone.default", "aten.bmm.default"]
    assert parts(1) == []  # one sample: the heads alone are the stack


def test_a_mask_is_the_same_ops_whether_its_values_are_held_or_not() -> None:
    """Masks up to a limit are real tensors and larger ones ghosts: the length alone must not change what runs."""

    def made(side: int) -> CallGraph:
        def forward(engine: Engine) -> torch.Tensor:
            return torch.where(torch.ones(side, side, dtype=torch.bool), torch.tensor(0.0), -1.0)

        return record(forward)

    small, large = made(512), made(1536)
    assert names(small) == names(large)
    assert [len(kind.parts) for kind in small.op_kinds] == [len(kind.parts) for kind in large.op_kinds]
    assert small.storages is not None and large.storages is not None
    assert small.storages.origin == large.storages.origin


def test_views_share_memory_and_in_place_ops_write_it() -> None:
    def forward(engine: Engine) -> torch.Tensor:
        x = engine.ghost(4, 6) * 2
        x.t().view(6, 4).add_(1)
        return x

    graph = record(forward)
    by_name = {kind.name: kind for kind in graph.op_kinds}
    assert by_name["aten.t.default"].output_aliases == (0,)
    assert not by_name["aten.t.default"].mutates
    assert by_name["aten.add_.Tensor"].mutates
    assert graph.storages is not None
    assert [
        b for b, origin in zip(graph.storages.bytes, graph.storages.origin, strict=True) if origin == "activation"
    ] == [96]


def test_a_real_op_is_recorded_too() -> None:
    assert names(record(lambda e: torch.arange(5).cumsum(0).view(5, 1))) == [
        "aten.arange.default",
        "aten.cumsum.default",
        "aten.view.default",
    ]


class LiveBytes(TorchDispatchMode):
    """Peak of the bytes alive in a real run, told by weak references to the storages."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        import weakref

        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (list, tuple)) else (output,):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
                tensor._keeps = storage
        self.peak = max(self.peak, sum(self.live.values()))
        return output


def peak_of(graph: CallGraph) -> int:
    """Peak of live activation bytes, straight from the definition."""
    assert graph.storages is not None and graph.ops is not None
    rows = graph.storages
    return max(
        sum(
            size
            for size, born, freed, origin in zip(rows.bytes, rows.born_op, rows.freed_op, rows.origin, strict=True)
            if origin == "activation" and born <= op < freed
        )
        for op in range(len(graph.ops.kind))
    )


def feed_forward(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        hidden = x @ up
        hidden = torch.relu(hidden)
        x = x + hidden @ down
    return x


def test_memory_lives_exactly_as_long_as_in_a_real_run() -> None:
    shapes = ((16, 32), (32, 128), (128, 32))
    real = [torch.rand(shape) for shape in shapes]
    with torch.inference_mode(), LiveBytes() as watched:
        feed_forward(*real)
    ghosts: list[torch.Tensor] = []

    def forward(engine: Engine) -> torch.Tensor:
        ghosts.extend(engine.ghost(*shape) for shape in shapes)
        return feed_forward(*ghosts)

    # At the widest point: x, the matmul before and after relu. Then x, hidden, hidden @ down and the new x.
    assert peak_of(record(forward)) == watched.peak == 4 * (16 * 32 + 2 * 16 * 128)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_trace_shows_the_device_that_the_code_saw(device: str) -> None:
    graph = record(lambda e: e.ghost(2, 2) + 1, device=device)
    assert {meta.device for meta in graph.tensor_metas} == {"cpu" if device == "cpu" else "cuda:0"}
