"""Weights that enter a matmul: followed through casts, counted once per forward, without idle experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.parameters import active_parameters
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.ops.table import price
from tests.costs.small_run import small_run

EXPERTS, WIDTH, OUT = 8, 16, 32
EXPERT = WIDTH * OUT
Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def test_each_weight_of_a_matmul_counts_once_in_its_stage() -> None:
    """The encoder's weight is used twice; a norm multiplies nothing."""
    assert active_parameters(small_run()) == {"vision": 64, "prefill": 64}


@pytest.fixture(scope="module", params=[1, 3])
def decode(request: pytest.FixtureRequest) -> CallGraph:
    *_, target = DeepSeekOcrAdapter().targets(DeepSeekOcrWorkload(mode="base", decode_steps=request.param))
    return WeightlessTracer().trace(target)


def test_a_decoded_token_of_deepseek_ocr_uses_574_million_weights(decode: CallGraph) -> None:
    """The router casts its weight to float32 before it multiplies; with it the sum is the published one."""
    assert active_parameters(decode)["decode"] == 574_095_360


class Stack(torch.nn.Module):
    """A stack of experts, and a way to multiply rows with some of them."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.experts = torch.nn.Parameter(torch.zeros(EXPERTS, WIDTH, OUT))
        self.use = use

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.use(rows, self.experts)


def trace_of_stack(use: Use, rows: int) -> CallGraph:
    target = Target(
        model="stack",
        phase="forward",
        workload={},
        build=lambda: Stack(use),
        invoke=lambda model: model(torch.zeros(rows, WIDTH)),
    )
    return WeightlessTracer().trace(target)


def active_in_stack(use: Use, rows: int) -> int | None:
    return active_parameters(trace_of_stack(use, rows))["forward"]


def grouped(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    ends = torch.arange(1, EXPERTS + 1, dtype=torch.int32).clamp(
        max=rows.shape[0]
    )  # one row each, the rest to the last
    ends[-1] = rows.shape[0]
    return torch._grouped_mm(rows.bfloat16(), experts.bfloat16(), offs=ends)


def grouped_on_one(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    ends = torch.full((EXPERTS,), rows.shape[0], dtype=torch.int32)
    return torch._grouped_mm(rows.bfloat16(), experts.bfloat16(), offs=ends)


def gathered(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    expert_of = torch.arange(rows.shape[0]) % EXPERTS
    return torch.bmm(rows[:, None], experts[expert_of])


def selected(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return torch.bmm(rows[:, None], experts.index_select(0, torch.arange(rows.shape[0]) % EXPERTS))


def looped(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[row : row + 1] @ experts[row % EXPERTS] for row in range(rows.shape[0])])


@pytest.mark.parametrize("use", [grouped, gathered, selected, looped])
@pytest.mark.parametrize(("rows", "used"), [(1, 1), (3, 3), (8, 8), (20, 8)])
def test_of_stacked_experts_those_that_rows_reach_are_active(use: Use, rows: int, used: int) -> None:
    assert active_in_stack(use, rows) == used * EXPERT


def test_rows_that_all_go_to_one_expert_use_and_read_that_one() -> None:
    graph = trace_of_stack(grouped_on_one, 20)
    assert active_parameters(graph)["forward"] == EXPERT
    (kind,) = [kind for kind in graph.op_kinds if "grouped_mm" in kind.name]
    cost = price(kind)
    assert kind.arguments["groups_used"] == 1
    assert cost is not None and cost.bytes_moved == 2 * (20 * WIDTH + EXPERT + 20 * OUT) + 4 * EXPERTS


def test_gathered_experts_count_once_however_often_they_are_used() -> None:
    def twice(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        picked = experts[torch.arange(2)]
        return torch.bmm(rows[:, None], picked) + torch.bmm(rows[:, None], picked.float())

    assert active_in_stack(twice, 2) == 2 * EXPERT


def test_a_matmul_over_the_whole_stack_uses_all_of_it() -> None:
    def batched(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ri,eio->ero", rows, experts)

    assert active_in_stack(batched, 1) == EXPERTS * EXPERT


def test_parts_of_one_weight_add_up_to_it() -> None:
    """As a packed projection of queries, keys and values is taken apart."""

    def packed(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        first, second, *_ = experts[0].chunk(4, dim=1)
        return rows @ first + rows @ second

    assert active_in_stack(packed, 5) == EXPERT // 2


def test_a_looked_up_row_is_not_active() -> None:
    def lookup(rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        table = experts.reshape(EXPERTS * OUT, WIDTH)
        return rows @ table[torch.arange(rows.shape[0])].mT

    assert active_in_stack(lookup, 3) == 0


def test_a_weight_in_an_op_that_nobody_can_read_leaves_it_unknown() -> None:
    graph = trace_of_stack(grouped, 3)
    kinds = (replace(kind, name=kind.name.replace("aten._grouped_mm", "mine.fused")) for kind in graph.op_kinds)
    assert active_parameters(replace(graph, op_kinds=tuple(kinds))) == {"forward": None}
