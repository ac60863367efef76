from __future__ import annotations

from fractions import Fraction

import pytest

from llm_perf_opt.comparisons import BudgetFigures, check_budget, compare, parse_budget
from llm_perf_opt.comparisons.budgets import COSTS
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.errors import UsageError
from tests.comparisons.made_runs import WIDTH, MadeRun

ROWS = 100
FLOPS = 2 * ROWS * WIDTH * WIDTH


def run(rows: int, phase: str = "prefill", *, ops: bool = True) -> CallGraph:
    made = MadeRun({"": "Net", "head": "Head"})
    made.weight("head.w", WIDTH, WIDTH)
    with made.call("", (rows, WIDTH)), made.call("head", (rows, WIDTH)):
        if ops:
            made.mm(rows)
    return made.graph(phase=phase, stages=[("head", ("head",))])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("head.flops<=+2%", True),
        ("head.flops<=+1.9%", False),
        ("head.flops < +2%", False),
        ("head.flops==+2%", True),
        ("head.flops==", False),
        ("head.calls==", True),
        ("head.flops>=-5%", True),
        (f"head.flops<={FLOPS}", False),
        ("head.flops<=1e12", True),
        (f"head.flops<=+{2 * 2 * WIDTH * WIDTH}", True),
        ("head.macs<=+0", False),
        ("prefill.head.ops==1", True),
        ("total.parameters==16", True),
        ("prefill.calls==1", True),
        ("prefill.total.calls==2", True),
    ],
)
def test_a_budget_on_two_percent_more_rows(text: str, holds: bool) -> None:
    figures = BudgetFigures([compare(run(ROWS), run(ROWS + 2))])
    assert check_budget(parse_budget(text), figures).holds is holds


def test_percent_are_exact() -> None:
    """In floating point 1.1 * 10^17 is off by more than one."""
    budget = parse_budget("head.flops<=+10%")
    assert budget.limit(10**17) == Fraction(11 * 10**16)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("head.flops<=1.5GFLOP", 1_500_000_000),
        ("head.macs<=2TMAC", 2 * 10**12),
        ("total.bytes<=50GB", 50 * 10**9),
        ("peak_memory<=20GiB", 20 * 2**30),
        ("cache<=+512 MiB", 512 * 2**20),
        ("decode.time<=12ms", Fraction(12, 1000)),
        ("decode.bound<=-2.5us", Fraction(-25, 10**7)),
        ("decode.high<=3", 3),
        ("flops<=7", 7),
    ],
)
def test_an_amount_may_have_a_unit(text: str, amount: Fraction) -> None:
    budget = parse_budget(text)
    assert budget.amount == amount
    assert budget.stage == (text.partition(".")[0] if text[0] in "hd" else "total")


@pytest.mark.parametrize("metric", COSTS)
def test_every_metric_has_a_figure(metric: str) -> None:
    figures = BudgetFigures([compare(run(ROWS), run(ROWS))])
    verdict = check_budget(parse_budget(f"total.{metric}=="), figures)
    assert verdict.holds
    assert isinstance(verdict.right, int)


def test_what_is_not_known_does_not_hold() -> None:
    figures = BudgetFigures([compare(run(ROWS), run(ROWS, ops=False))])
    assert not check_budget(parse_budget("head.flops<=1e30"), figures).holds
    assert check_budget(parse_budget("head.calls<=1e30"), figures).holds
    back = BudgetFigures([compare(run(ROWS, ops=False), run(ROWS))])
    assert not check_budget(parse_budget("head.flops<=+1%"), back).holds
    assert check_budget(parse_budget("head.flops<=1e30"), back).holds


def test_ops_without_a_price_leave_flops_unknown() -> None:
    """Their work may be anything, so the sum of the others is no figure that a budget may rest on."""
    odd = MadeRun({"": "Net", "head": "Head"})
    with odd.call("", (ROWS, WIDTH)), odd.call("head", (ROWS, WIDTH)):
        odd.mm(ROWS)
        odd.op("odd.scan.default", ROWS)
    figures = BudgetFigures([compare(run(ROWS), odd.graph(phase="prefill", stages=[("head", ("head",))]))])
    found = check_budget(parse_budget("head.flops<=1e30"), figures)
    assert not found.holds
    assert "odd.scan" in found.why
    assert check_budget(parse_budget("head.ops<=+1"), figures).holds


def test_a_stage_of_two_phases_needs_its_phase() -> None:
    phases = [compare(run(ROWS, phase), run(ROWS, phase)) for phase in ("prefill", "decode")]
    figures = BudgetFigures(phases)
    assert "head" not in figures.stages
    assert {"prefill.head", "decode.head", "total", "prefill", "decode"} <= figures.stages.keys()
    assert check_budget(parse_budget(f"total.flops=={2 * FLOPS}"), figures).holds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("head.flop<=+1%", "did you mean 'flops'?"),
        ("head.flops<=1%", "+1%"),
        ("head.flops<=", "only =="),
        ("head.flops~1", "a relation"),
        ("<=1", "STAGE.METRIC"),
        ("head.flops==%", "only =="),
        ("peak_memory<=12ms", "units of peak_memory are B, kB"),
        ("calls<=3GiB", "calls has no unit"),
        ("decode.cache<=1GiB", "write cache alone"),
        ("flops<=1e999999999", "too large"),
    ],
)
def test_a_budget_that_cannot_be_meant(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_budget(text)
    assert hint in str(caught.value)


def test_an_unknown_stage_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'head'"):
        check_budget(parse_budget("haed.flops<=1"), BudgetFigures([compare(run(ROWS), run(ROWS))]))
