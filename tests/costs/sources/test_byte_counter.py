"""Bytes moved, counted twice: by hand on single modules, on real tensors, and against the price list."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.core.target import Stage
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.costs.sources.byte_counter import ByteCounter, moved_bytes
from llm_perf_opt.costs.stage_costs import stage_costs
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from tests.costs.sources.one_module import OneModule
from tests.costs.sources.traps import TRAPS, Trap

ROWS, IN, OUT, EXPERTS = 24, 16, 32, 8
FLOAT, HALF, LONG, INT = 4, 2, 8, 4


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def watched(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> int:
    """What the source says of a function of tensors with these shapes; the zeros in them are written in the run."""
    adapter = OneModule(lambda: Of(function), lambda: [torch.zeros(*shape) for shape in shapes])
    (told,) = ByteCounter().figures(adapter, Workload())
    assert told.failure is None
    assert told.bytes_moved is not None
    return told.bytes_moved - FLOAT * sum(math.prod(shape) for shape in shapes)


def test_a_matmul_reads_both_operands_and_the_bias_and_writes_the_result() -> None:
    moved = watched(nn.functional.linear, (ROWS, IN), (OUT, IN), (OUT,))
    assert moved == FLOAT * (ROWS * IN + OUT * IN + OUT + ROWS * OUT)


def test_a_view_moves_nothing_and_a_copy_twice_its_size() -> None:
    assert watched(lambda x: x.transpose(0, 1).view(IN, 4, 6), (ROWS, IN)) == 0
    assert watched(lambda x: x.transpose(0, 1).contiguous(), (ROWS, IN)) == FLOAT * 2 * ROWS * IN


def test_an_in_place_op_reads_and_writes_its_target_and_a_copy_into_it_only_writes() -> None:
    assert watched(lambda x, y: x.add_(y), (ROWS, IN), (ROWS, IN)) == FLOAT * 3 * ROWS * IN
    assert watched(lambda x, y: x.copy_(y), (ROWS, IN), (ROWS, IN)) == FLOAT * 2 * ROWS * IN


def test_a_lookup_reads_the_rows_it_names_and_not_the_table() -> None:
    def look_up(table: Tensor) -> Tensor:
        return nn.functional.embedding(torch.arange(ROWS), table)

    indices = LONG * ROWS
    assert watched(look_up, (1000, IN)) == 2 * indices + FLOAT * 2 * ROWS * IN  # the indices are written and read


def grouped(ends: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    def matmul(rows: Tensor, experts: Tensor) -> Tensor:
        offsets = torch.tensor(ends, dtype=torch.int32)
        return torch._grouped_mm(rows.bfloat16(), experts.bfloat16(), offs=offsets)

    return matmul


CASTS = (FLOAT + HALF) * (ROWS * IN + EXPERTS * IN * OUT)  # to the type that the kernel takes


@pytest.mark.parametrize(
    ("ends", "used"),
    [
        ([3, 6, 9, 12, 15, 18, 21, 24], 8),
        ([24] * 8, 1),
        ([0, 0, 12, 12, 12, 24, 24, 24], 2),
        ([0] * 8, 0),
    ],
)
def test_a_grouped_matmul_reads_the_experts_that_got_rows(ends: list[int], used: int) -> None:
    """How many is told by the offsets, which are where each group of rows ends."""
    moved = watched(grouped(ends), (ROWS, IN), (EXPERTS, IN, OUT))
    offsets = INT * EXPERTS
    assert moved - CASTS - offsets == HALF * (ROWS * IN + used * IN * OUT + ROWS * OUT)


class Experts(nn.Module):
    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, IN, OUT, dtype=torch.bfloat16))
        self.ends = ends

    def forward(self, rows: Tensor) -> Tensor:
        return torch._grouped_mm(rows, self.weight, offs=torch.tensor(self.ends, dtype=torch.int32))


@pytest.mark.parametrize("ends", [[24] * 8, [0, 0, 12, 12, 12, 24, 24, 24], [3, 6, 9, 12, 15, 18, 21, 24]])
def test_the_price_list_reads_as_many_experts(ends: list[int]) -> None:
    adapter = OneModule(lambda: Experts(ends), lambda: (torch.zeros(ROWS, IN, dtype=torch.bfloat16),))
    (told,) = ByteCounter().figures(adapter, Workload())
    assert told.bytes_moved == stage_costs(WeightlessTracer().trace(adapter.target())).total.bytes_moved


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_the_price_list_moves_as_many_bytes(trap: Trap) -> None:
    (told,) = ByteCounter().figures(trap.adapter, Workload())
    (ours,) = counted(WeightlessTracer().trace(trap.adapter.target()))
    assert told.bytes_moved == ours.bytes_moved
    assert (told.flops, told.failure) == (None, None)


@pytest.mark.parametrize("name", ["SDPA with a mask", "einsum", "conv with groups", "unused experts", "tied weights"])
def test_a_real_run_moves_as_many_bytes_as_one_on_ghosts(name: str) -> None:
    """The same watch over tensors that exist, with composite ops whole as they are there."""
    adapter, total = TRAPS[name].adapter, 0

    def on_op(func: object, args: object, kwargs: object, output: object) -> None:
        nonlocal total
        total += moved_bytes(func, args, kwargs, output)  # type: ignore[arg-type]

    module = adapter.build()
    with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView(), OpWatch(on_op):
        module(*adapter.args(), **adapter.kwargs())
    (told,) = ByteCounter(device="cpu").figures(adapter, Workload())
    assert told.bytes_moved == total > 0


def test_stages_are_told_apart_and_the_rest_belongs_to_the_phase() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(IN, OUT, bias=False)
            self.second = nn.Linear(OUT, IN, bias=False)

        def forward(self, rows: Tensor) -> Tensor:
            return self.second(self.first(rows)) + rows

    adapter = OneModule(Two, lambda: (torch.zeros(ROWS, IN),), stages=(Stage(name="up", paths=("first",)),))
    told = {said.stage: said.bytes_moved for said in ByteCounter().figures(adapter, Workload())}
    matmul = FLOAT * (ROWS * IN + IN * OUT + ROWS * OUT)
    made_and_added = FLOAT * (ROWS * IN + 3 * ROWS * IN)
    assert told == {"up": matmul, "forward": matmul + made_and_added}


def test_a_model_that_raises_is_a_failure_with_the_reason() -> None:
    def fail(rows: Tensor) -> Tensor:
        raise ValueError("no such token")

    (told,) = ByteCounter().figures(OneModule(lambda: Of(fail), lambda: (torch.zeros(2),)), Workload())
    assert (told.failure, told.bytes_moved) == ("ValueError: no such token", None)
