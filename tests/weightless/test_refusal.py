"""What cannot be run is refused with the op, the module, the line and the remedy; ordinary errors keep their type."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_perf_opt.core.callgraph import CallGraphBuilder
from llm_perf_opt.harness.module_calls import watch_modules
from llm_perf_opt.weightless import Engine, Limits, Refusal


@pytest.fixture
def opaque_op() -> object:
    """An op that torch knows by name only: no kernel, no shapes."""
    library = torch.library.Library("lpo_refusal", "DEF")
    library.define("opaque(Tensor x, int n) -> Tensor")
    yield torch.ops.lpo_refusal.opaque
    library._destroy()


class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.lpo_refusal.opaque(x, 9)  # type: ignore[no-any-return]


def test_an_unknown_op_is_refused_with_its_place_and_a_remedy(opaque_op: object) -> None:
    model = nn.Sequential(nn.Identity(), Block())
    engine, builder = Engine(), CallGraphBuilder()
    with engine.recording(builder) as recorder:
        calls = watch_modules(
            model, lambda path, tensors: recorder.builder.enter(path, ()), lambda tensors: recorder.builder.leave(())
        )
        with calls, pytest.raises(Refusal) as refused:
            engine.run(lambda: model(engine.ghost(5, 3)))
    line = Block.forward.__code__.co_firstlineno + 1
    assert "lpo_refusal.opaque" in refused.value.what
    assert "in module 1" in refused.value.what
    assert f"test_refusal.py:{line}" in refused.value.what
    assert "rules=" in refused.value.fix


def test_a_rule_lets_it_through(opaque_op: object) -> None:
    engine = Engine(rules={opaque_op: lambda engine, x, n: engine.ghost(n, *x.shape[1:], dtype=x.dtype)})
    assert engine.run(lambda: Block()(engine.ghost(5, 3))).shape == (9, 3)


def test_an_op_with_only_a_cpu_kernel_stands_in_while_it_is_small() -> None:
    library = torch.library.Library("lpo_standin", "DEF")
    try:
        library.define("pick(Tensor x, Tensor i) -> (Tensor, Tensor)")
        library.impl("pick", lambda x, i: (x[i], i + 1), "CPU")
        engine = Engine()
        picked, after = engine.run(lambda: torch.ops.lpo_standin.pick(engine.ghost(5, 3), torch.tensor([1, 2])))
        assert (picked.shape, after.tolist()) == ((2, 3), [2, 3])
        small = Engine(limits=Limits(stand_in=4))
        with pytest.raises(Refusal, match="cannot run without weights"):
            small.run(lambda: torch.ops.lpo_standin.pick(small.ghost(5, 3), torch.tensor([1, 2])))
    finally:
        library._destroy()


def test_a_shape_error_keeps_its_type_and_gains_its_place() -> None:
    engine = Engine()
    with pytest.raises(RuntimeError) as error:
        engine.run(lambda: engine.ghost(2, 3) @ engine.ghost(4, 5))
    assert any("aten.matmul" in note and "test_refusal.py" in note for note in error.value.__notes__)


def test_a_real_index_out_of_range_is_an_error_as_it_would_be() -> None:
    engine = Engine()
    for index in (4, 7):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
            engine.run(lambda index=index: engine.ghost(4, 2)[torch.tensor([0, index])])
    assert engine.run(lambda: engine.ghost(4, 2)[torch.tensor([-4, 3])].shape) == (2, 2)
    with pytest.raises(IndexError, match="out of bounds"):
        engine.run(lambda: nn.functional.embedding(torch.tensor([9]), engine.ghost(4, 2)))


def test_what_meta_kernels_forget_to_check_is_checked() -> None:
    engine = Engine()
    with pytest.raises(RuntimeError, match="32 channels, the weight 512"):
        engine.run(
            lambda: nn.functional.conv_transpose1d(engine.ghost(1, 32, 64), engine.ghost(512, 1, 32), groups=512)
        )
    with pytest.raises(RuntimeError, match="1 images and 2 grids"):
        engine.run(lambda: nn.functional.grid_sample(engine.ghost(1, 3, 8, 8), engine.ghost(2, 4, 4, 2)))


def test_values_that_would_not_fit_are_not_invented() -> None:
    engine = Engine()
    with pytest.raises(Refusal, match="tolist"):
        engine.run(lambda: engine.ghost(100_000, 100_000).tolist())
