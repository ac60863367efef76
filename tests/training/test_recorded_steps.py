"""Which phase an op is in, and which module the ops of a backward belong to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from llm_perf_opt.core.recorded_step import BACKWARD, FORWARD, LOSS, OPTIMIZER
from tests.training.steps import LAYERS, llama_step, module_of_op, op_names, own_step

pytest.importorskip("transformers", minversion="5.0", reason="the tiny decoder is of transformers 5")


class Pair(nn.Module):
    """Two linear layers, the first of which is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.first(rows)).relu())  # type: ignore[no-any-return]


def clipped_step(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(3, 8)).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_phases_follow_each_other_and_cover_every_op() -> None:
    step, _ = llama_step()
    assert [phase for phase, _ in step.ranges()] == [FORWARD, LOSS, BACKWARD, OPTIMIZER]
    assert sum(len(rows) for _, rows in step.ranges()) == step.op_count


def test_accumulation_repeats_forward_loss_and_backward_before_one_optimizer() -> None:
    step, _ = llama_step(accumulation=3)
    phases = [phase for phase, _ in step.ranges()]
    assert phases.count(FORWARD) == phases.count(BACKWARD) == 3
    assert phases[-1] == OPTIMIZER


def test_the_loss_begins_after_the_head() -> None:
    step, _ = llama_step()
    assert "mm.default" not in op_names(step, LOSS)
    assert "nll_loss_forward.default" in op_names(step, LOSS)


def test_clipping_belongs_to_the_optimizer_and_a_loss_outside_the_model_is_the_loss() -> None:
    step = own_step(Pair, clipped_step)
    assert "mean.default" in op_names(step, LOSS)
    assert any("norm" in name for name in op_names(step, OPTIMIZER))
    assert not any("norm" in name for name in op_names(step, BACKWARD))


def test_matmuls_of_a_backward_are_in_the_module_of_their_forward() -> None:
    step = own_step(Pair, clipped_step)
    graph = step.graph
    assert graph.ops is not None
    rows = next(rows for phase, rows in step.ranges() if phase == BACKWARD)
    matmuls = [module_of_op(step, row) for row in rows if graph.op_kinds[graph.ops.kind[row]].name == "aten.mm.default"]
    # Each use: the gradient of the weight, and of the input where that has one; the rows given have none.
    assert sorted(map(str, matmuls)) == ["first"] * 3 + ["second"] * 2


def test_a_decoder_has_two_matmuls_in_the_backward_of_each_linear_layer() -> None:
    step, _ = llama_step()
    graph = step.graph
    assert graph.ops is not None
    rows = next(rows for phase, rows in step.ranges() if phase == BACKWARD)
    owners = [module_of_op(step, row) for row in rows if graph.op_kinds[graph.ops.kind[row]].name == "aten.mm.default"]
    assert len(owners) == 2 * (7 * LAYERS + 1)
    assert all(owners.count(f"model.layers.{layer}.mlp.up_proj") == 2 for layer in range(LAYERS))


@pytest.mark.parametrize(("recompute", "matmuls_again"), [("full", 6), ("full-reentrant", 7), ("selective", 0)])
def test_recomputation_runs_the_matmuls_of_each_layer_again(recompute: str, matmuls_again: int) -> None:
    """All seven; torch stops before the last one where nothing needs its result. A selective policy keeps them."""
    step, _ = llama_step(recompute=recompute)
    graph = step.graph
    assert graph.ops is not None
    again = [graph.op_kinds[graph.ops.kind[row]].name for rows in step.recomputed for row in rows]
    assert len(step.recomputed) == LAYERS
    assert again.count("aten.mm.default") == matmuls_again * LAYERS


def test_every_gradient_and_state_is_found() -> None:
    step, _ = llama_step()
    trained = [parameter for parameter in step.graph.parameters if parameter.name in step.trainable]
    assert len(step.gradients) == len(trained)
    assert len(step.optimizer_states) == 3 * len(trained)  # two averages and a counter


def test_attention_is_what_cuda_would_run() -> None:
    """Flash for 16 bits; grouped heads in float32 fit no fused kernel of CUDA."""
    assert "_scaled_dot_product_flash_attention.default" in op_names(
        llama_step(device="cuda", dtype="bfloat16")[0], FORWARD
    )
    backward = op_names(llama_step(device="cuda", dtype="bfloat16")[0], BACKWARD)
    assert "_scaled_dot_product_flash_attention_backward.default" in backward
    plain = op_names(llama_step(device="cuda", dtype="float32")[0], FORWARD)
    assert not any("flash" in name or "efficient" in name for name in plain)


def test_an_error_that_a_step_catches_keeps_no_tensor_alive() -> None:
    """Recomputation ends each layer by an error; held, it would hold every activation of the layer."""
    with_error, _ = llama_step(recompute="full")
    without, _ = llama_step(recompute="full-reentrant")
    assert with_error.graph.storages is not None and without.graph.storages is not None
    end = with_error.op_count
    assert sum(freed == end for freed in with_error.graph.storages.freed_op) <= sum(
        freed == without.op_count for freed in without.graph.storages.freed_op
    )
