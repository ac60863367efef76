"""A training step in a script's own words, traced by `lpo.trace`: the same memory as for real, and nothing touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import llm_perf_opt as lpo
from benchmarks.training.real_step import tensors_of, witness
from llm_perf_opt.api.traced_step import StepTrace
from llm_perf_opt.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, CLASSES, BATCH = 24, 5, 3


class Patches(torch.nn.Module):
    """Pictures in patches, an encoder layer of torch's own, and the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, WIDTH, 4, stride=4)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 40, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(pictures).flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens)
        logits: torch.Tensor = self.head(tokens.mean(1))
        return logits


def own_step(model: Any, optimizer: Any, pictures: torch.Tensor, classes: torch.Tensor) -> None:
    """Two losses of one forward, clipping, and gradients put to zero."""
    logits = model(pictures)
    loss = torch.nn.functional.cross_entropy(logits, classes) + 0.01 * logits.square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def arguments() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Patches()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    return model, optimizer, torch.randn(BATCH, 3, 16, 16), torch.arange(BATCH)


@pytest.fixture(scope="module")
def traced() -> Iterator[StepTrace]:
    trace = lpo.trace(own_step, arguments(), torch_device="cpu")
    assert isinstance(trace, StepTrace)
    yield trace


def test_a_step_of_a_script_takes_the_memory_and_the_flops_that_it_takes_for_real(traced: StepTrace) -> None:
    given = arguments()
    own_step(*given)  # as the trace does: states are there
    real = witness(lambda: own_step(*given), lambda: tensors_of(given[0], given[1], {"batch": given[2:]}))
    assert traced.training().peak.peak_bytes == pytest.approx(real.peak_bytes, rel=0.01)
    # Two layers, forward and backward: torch's counter has no formula for its fused attention on a processor.
    attention = 2 * (4 + 10) * BATCH * 16 * 16 * WIDTH
    assert traced.training().flops == real.flops + attention


def test_its_phases_are_forward_loss_backward_and_optimizer(traced: StepTrace) -> None:
    assert traced.phases == ("forward", "loss", "backward", "optimizer")
    assert all(graph.problems() == [] for graph in traced.graphs)
    weights = sum(weight.numel() for weight in Patches().parameters()) * 4
    at_optimizer = traced.training().peak_by_phase["optimizer"].by_kind
    assert at_optimizer["gradients"] == weights  # type: ignore[index]
    assert at_optimizer["weights"] == weights  # type: ignore[index]


def test_the_scripts_own_model_and_optimizer_stay_as_they_are() -> None:
    given = arguments()
    before = [weight.clone() for weight in given[0].parameters()]
    lpo.trace(own_step, given, torch_device="cpu")
    assert not given[1].state
    assert all(weight.grad is None for weight in given[0].parameters())
    assert all(torch.equal(weight, old) for weight, old in zip(given[0].parameters(), before, strict=True))


def test_a_step_without_a_model_among_its_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match="no model among its arguments"):
        lpo.trace(lambda batch: batch.sum(), (torch.ones(2),))


def test_options_of_other_traces_are_refused() -> None:
    with pytest.raises(UsageError, match="takes no prompt_tokens"):
        lpo.trace(own_step, arguments(), prompt_tokens=8)
