"""With autograd above the engine a backward runs on ghosts, and optimizers step over them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_perf_opt.core.callgraph import CallGraphBuilder
from llm_perf_opt.weightless import Engine, Ghost


def ran(engine: Engine, builder: CallGraphBuilder) -> list[str]:
    graph = builder.finish(model="", phase="", tracer="", workload={}, stages=[], runtime={}, library_versions={})
    assert graph.ops is not None
    return [graph.op_kinds[kind].name for kind in graph.ops.kind]


def recorded(engine: Engine, step: object) -> list[str]:
    builder = CallGraphBuilder()
    with engine, engine.recording(builder):
        step()  # type: ignore[operator]
    return ran(engine, builder)


def linear(engine: Engine) -> nn.Linear:
    with engine, torch.no_grad():
        return engine.adopt(nn.Linear(64, 32))


def test_gradients_are_ghosts_of_the_shapes_of_the_weights() -> None:
    engine = Engine(autograd=True)
    model = linear(engine)
    with engine:
        model(engine.ghost(8, 64)).square().mean().backward()
    assert all(type(weight.grad) is Ghost for weight in model.parameters())
    assert [tuple(weight.grad.shape) for weight in model.parameters() if weight.grad is not None] == [(32, 64), (32,)]


@pytest.mark.parametrize(("foreach", "op"), [(None, "aten._foreach_add_.List"), (False, "aten.mul_.Tensor")])
def test_an_optimizer_steps_over_lists_on_a_gpu_and_one_by_one_where_it_is_set_so(
    foreach: bool | None, op: str
) -> None:
    engine = Engine(device="cuda", autograd=True)
    model = linear(engine)

    def step() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=foreach)
        for _ in range(2):
            model(engine.ghost(8, 64)).square().mean().backward()
            optimizer.step()

    assert op in recorded(engine, step)


def test_the_type_of_ghosts_is_known_to_optimizers_only_while_an_engine_is_open() -> None:
    from torch.optim import optimizer

    engine = Engine(autograd=True)
    with engine:
        assert Ghost in optimizer._foreach_supported_types
    assert Ghost not in optimizer._foreach_supported_types


def attention(engine: Engine, dtype: torch.dtype, key_heads: int, *, masked: bool = False) -> list[str]:
    query = engine.ghost(2, 4, 16, 8, dtype=dtype).requires_grad_()
    key = engine.ghost(2, key_heads, 16, 8, dtype=dtype).requires_grad_()

    def step() -> None:
        mask = torch.ones(16, 16, dtype=torch.bool).tril() if masked else None
        result = nn.functional.scaled_dot_product_attention(
            query, key, key, attn_mask=mask, is_causal=not masked, enable_gqa=key_heads < 4
        )
        result.sum().backward()

    return recorded(engine, step)


def test_each_dtype_and_mask_gets_the_kernel_of_cuda_with_its_backward() -> None:
    engine = Engine(device="cuda", autograd=True)
    flash = attention(engine, torch.bfloat16, 2)
    assert "aten._scaled_dot_product_flash_attention_backward.default" in flash
    efficient = attention(engine, torch.float32, 4)
    assert "aten._scaled_dot_product_efficient_attention_backward.default" in efficient
    masked = attention(engine, torch.bfloat16, 4, masked=True)
    assert "aten._scaled_dot_product_efficient_attention_backward.default" in masked
    scores_in_memory = attention(engine, torch.float32, 2)
    assert "aten._safe_softmax.default" in scores_in_memory


def test_a_cpu_keeps_its_own_kernel() -> None:
    names = attention(Engine(device="cpu", autograd=True), torch.float32, 4)
    assert "aten._scaled_dot_product_flash_attention_for_cpu_backward.default" in names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_one_grouped_matmul_have_gradients_in_every_dtype(dtype: torch.dtype) -> None:
    engine = Engine(autograd=True)
    rows = engine.ghost(24, 16, dtype=dtype).requires_grad_()
    weights = engine.ghost(4, 16, 32, dtype=dtype).requires_grad_()
    with engine:
        torch._grouped_mm(rows, weights, offs=torch.tensor([6, 12, 18, 24], dtype=torch.int32)).sum().backward()
    assert rows.grad is not None and weights.grad is not None
    assert (tuple(rows.grad.shape), tuple(weights.grad.shape)) == ((24, 16), (4, 16, 32))


def test_without_autograd_composite_ops_stay_whole() -> None:
    engine = Engine()
    model = linear(engine)
    assert recorded(engine, lambda: model(engine.ghost(8, 64))) == ["aten.linear.default"]
