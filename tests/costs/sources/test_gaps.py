"""What a counter leaves out is found whatever hides it: a missing formula, an op the tracer skips, a loose matmul."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.source_figures import WorkFamily, family_of
from llm_perf_opt.core.target import Stage
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources.fvcore_counter import FvcoreCounter
from llm_perf_opt.costs.sources.torch_counter import TorchCounter
from tests.costs.sources.one_module import OneModule, accounted
from tests.costs.sources.traps import CUSTOM_OP

ROWS, IN, OUT, STEPS = 2, 8, 16, 5


class Broadcast(nn.Module):
    """The right operand has the batch: a count from the left one alone is too low."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right


class TwoTowers(nn.Module):
    """Like a contrastive model: two stages, and the product of their outputs between them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(IN, OUT, bias=False)
        self.right = nn.Linear(IN, OUT, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.left(rows) @ self.right(rows).t()


def _sequence() -> tuple[Tensor, ...]:
    return (torch.zeros(ROWS, STEPS, IN),)


HIDDEN_BY_FVCORE = {
    "a recurrent layer": (
        OneModule(lambda: nn.LSTM(IN, OUT, batch_first=True), _sequence),
        "aten::lstm",
        2 * ROWS * STEPS * 4 * OUT * (IN + OUT),
    ),
    "a recurrent cell, which no trace records": (
        OneModule(lambda: nn.GRUCell(IN, OUT), lambda: (torch.zeros(ROWS, IN),)),
        "aten.gru_cell",
        2 * ROWS * 3 * OUT * (IN + OUT),
    ),
    "a convolution with padding by name": (
        OneModule(lambda: nn.Conv2d(IN, OUT, 3, padding="same"), lambda: (torch.zeros(ROWS, IN, 5, 5),)),
        "aten.conv2d",
        2 * ROWS * OUT * 5 * 5 * IN * 3 * 3,
    ),
}


@pytest.mark.parametrize(("adapter", "operator", "flops"), HIDDEN_BY_FVCORE.values(), ids=HIDDEN_BY_FVCORE)
def test_what_fvcore_hides_is_a_blind_spot_with_its_flops(adapter: OneModule, operator: str, flops: int) -> None:
    (figures,) = FvcoreCounter().figures(adapter, Workload())
    (spot,) = figures.blind_spots
    assert (figures.flops, spot.cause, spot.operator, spot.flops) == (0, "op-without-formula", operator, flops)
    (other,) = TorchCounter().figures(adapter, Workload())
    assert accounted(other) == flops


def test_weights_that_are_arguments_of_a_module_do_not_stop_the_torch_counter() -> None:
    """A parametrised weight is computed by a module of its own, from weights."""
    adapter = OneModule(
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv1d(IN, OUT, 3)), lambda: (torch.zeros(ROWS, IN, 6),)
    )
    (figures,) = TorchCounter().figures(adapter, Workload())
    assert accounted(figures) == 2 * ROWS * OUT * 4 * IN * 3


def test_a_broadcast_matmul_is_counted_too_low_by_fvcore() -> None:
    adapter = OneModule(Broadcast, lambda: (torch.zeros(4, IN), torch.zeros(3, IN, 5)))
    (figures,) = FvcoreCounter().figures(adapter, Workload())
    assert figures.flops == 2 * 4 * IN * 5
    assert [spot.cause for spot in figures.blind_spots] == ["broadcast-uncounted"]
    assert accounted(figures) == 3 * 2 * 4 * IN * 5


def test_a_custom_op_is_a_blind_spot_of_fvcore() -> None:
    (figures,) = FvcoreCounter().figures(CUSTOM_OP.adapter, Workload())
    (spot,) = figures.blind_spots
    assert (spot.cause, spot.operator, spot.flops) == ("op-without-formula", "llm_perf_opt_traps::mix", None)


@pytest.mark.parametrize("source", [TorchCounter, FvcoreCounter])
def test_a_matmul_between_stages_is_priced_and_named(source: type[TorchCounter] | type[FvcoreCounter]) -> None:
    towers = (Stage(name="left", paths=("left",)), Stage(name="right", paths=("right",)))
    adapter = OneModule(TwoTowers, lambda: (torch.zeros(ROWS, IN),), stages=towers)
    left, right, rest = source().figures(adapter, Workload())
    assert left.flops == right.flops == 2 * ROWS * IN * OUT
    assert (rest.flops, [spot.cause for spot in rest.blind_spots]) == (0, ["outside-isolated-modules"])
    assert accounted(rest) == 2 * ROWS * OUT * ROWS
    assert "ran in no isolated module" in rest.notes[0]


@pytest.mark.parametrize(
    ("operator", "family"),
    [
        ("aten.addmm.default", WorkFamily.MATMUL),
        ("aten::matmul", WorkFamily.MATMUL),
        ("conv", WorkFamily.CONVOLUTION),
        ("aten.conv2d.default", WorkFamily.CONVOLUTION),
        ("aten._scaled_dot_product_flash_attention_for_cpu", WorkFamily.ATTENTION),
        ("transformers.grouped_mm_fallback", WorkFamily.GROUPED),
        ("aten._grouped_mm.default", WorkFamily.GROUPED),
        ("aten::upsample_bilinear2d", WorkFamily.OTHER),
        ("aten::upsample_linear1d", WorkFamily.OTHER),
        ("aten.cummax.default", WorkFamily.OTHER),
        ("aten.digamma.default", WorkFamily.OTHER),
        ("aten._convert_weight_to_int4pack", WorkFamily.OTHER),
        ("layer_norm", WorkFamily.OTHER),
    ],
)
def test_an_operator_is_known_by_the_words_of_its_name(operator: str, family: WorkFamily) -> None:
    assert family_of(operator) is family
