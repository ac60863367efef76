"""Experts of different sizes: a run costs more or less by who gets the rows, and the ledger names that as the cause."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from llm_perf_opt.api.cost import cost_of
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.counted import counted
from llm_perf_opt.costs.reconcile import reconcile
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.tracing.origin import Origin
from tests.costs.sources.one_module import OneModule

ROWS, WIDTH, DENSE, NARROW, WIDE = 8, 32, 1024, 8, 24
COMMON = 2 * ROWS * WIDTH * (DENSE + 2)  # the dense layer, and the scores of two experts
BALANCED = COMMON + 2 * (ROWS // 2) * WIDTH * (NARROW + WIDE)
ONE = COMMON + 2 * ROWS * WIDTH * NARROW


class UnevenExperts(nn.Module):
    """A dense layer, and two experts of which one is narrow; each row takes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, DENSE, bias=False)
        self.router = nn.Linear(WIDTH, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, width, bias=False) for width in (NARROW, WIDE))

    def forward(self, rows: Tensor) -> Tensor:
        chosen = self.router(rows).topk(1).indices[:, 0]
        for number, expert in enumerate(self.experts):
            taken = rows[(chosen == number).nonzero()[:, 0]]
            if len(taken):
                expert(taken)
        return self.dense(rows)


ADAPTER = OneModule(UnevenExperts, lambda: (torch.zeros(ROWS, WIDTH),))


def count(routing: str) -> tuple[SourceFigures, ...]:
    return counted(WeightlessTracer(routing=routing).trace(ADAPTER.target()))


@pytest.mark.parametrize(("routing", "flops"), [("balanced", BALANCED), ("one", ONE)])
@pytest.mark.parametrize("source", ["torch-counter", "fvcore"])
def test_a_source_sends_the_rows_where_it_is_told(source: str, routing: str, flops: int) -> None:
    (told,) = SOURCES.get(source)(routing=routing).figures(ADAPTER, Workload())
    assert (told.flops, told.routing) == (flops, routing)
    (ours,) = count(routing)
    assert (ours.flops, ours.routing) == (flops, routing)
    assert not reconcile([ours, told]).differences


def test_rows_that_went_elsewhere_are_the_cause_of_the_difference() -> None:
    told = SOURCES.get("torch-counter")().figures(ADAPTER, Workload())
    ledger = reconcile([*count("one"), *told])
    (entry,) = ledger.differences
    assert [(part.cause, part.flops) for part in entry.explanations] == [("routing", BALANCED - ONE)]
    assert not ledger.unexplained


def test_a_model_without_experts_has_nobody_to_send_rows_to() -> None:
    dense = OneModule(lambda: nn.Linear(WIDTH, DENSE), lambda: (torch.zeros(ROWS, WIDTH),))
    (ours,) = counted(WeightlessTracer(routing="one").trace(dense.target()))
    assert ours.routing is None


def test_the_routing_of_a_request_reaches_every_source_that_runs_the_model() -> None:
    origin = Origin(name="uneven", source=ADAPTER, workload=Workload(), routing="one", torch_device="cpu")
    static = cost_of(origin, ("counted", "torch-counter", "fvcore")).static
    (stage,) = static.stages
    assert [source.source for source in stage.sources] == ["counted", "torch-counter", "fvcore"]
    assert {(source.flops, source.routing) for source in stage.sources} == {(ONE, "one")}
    assert not static.ledger.differences


def test_the_export_is_cut_from_a_run_with_the_routing_it_is_told() -> None:
    (told,) = SOURCES.get("exported")(routing="one").figures(ADAPTER, Workload())
    assert told.routing == "one"


def test_a_policy_that_does_not_exist_is_refused_by_whom_it_is_asked_of() -> None:
    origin = Origin(name="uneven", source=ADAPTER, workload=Workload(), routing="fair")
    with pytest.raises(UsageError, match="No routing policy 'fair'"):
        cost_of(origin, ("torch-counter",))
