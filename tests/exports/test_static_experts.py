"""The two ways to write a mixture of experts without a loop give the values of the loop, whatever the routing."""

from __future__ import annotations

import pytest
import torch

from llm_perf_opt.models.deepseek_ocr.parts import AllExperts, GroupedExperts
from tests.models.deepseek_ocr.tiny_twin import tiny_model


@pytest.mark.parametrize("scale", [0.1, 3.0])
@torch.no_grad()
def test_every_expert_on_every_token_equals_the_loop(scale: float) -> None:
    layer = tiny_model().model.layers[1].mlp
    hidden = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1)) * scale
    torch.testing.assert_close(AllExperts(layer)(hidden), layer(hidden), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_grouped_experts_equal_the_loop_to_the_precision_of_bfloat16() -> None:
    layer = tiny_model().model.layers[1].mlp
    hidden = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    expected = layer(hidden)
    largest = expected.abs().max().item()
    torch.testing.assert_close(GroupedExperts(layer)(hidden), expected, rtol=0, atol=0.02 * largest)


@torch.no_grad()
def test_an_expert_without_tokens_changes_nothing() -> None:
    layer = tiny_model().model.layers[1].mlp
    hidden = torch.ones(1, 1, 32)  # one token: most experts get none
    torch.testing.assert_close(AllExperts(layer)(hidden), layer(hidden), rtol=1e-4, atol=1e-5)
