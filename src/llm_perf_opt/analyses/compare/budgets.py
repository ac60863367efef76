"""Stages of two runs side by side, and budgets on them: `prefill.flops<=+1%`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import eq, ge, gt, le, lt
from types import MappingProxyType

from llm_perf_opt.analyses.compare.explain import Comparison
from llm_perf_opt.analyses.compare.side import Side, knows_cost
from llm_perf_opt.analyses.cost.parameters import count_distinct_parameters
from llm_perf_opt.analyses.cost.stage_costs import StageCost, sum_of_stages
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError

TOTAL = "total"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePair:
    """One stage of one phase, or a total; None where a side has no such stage or does not separate it."""

    phase: str
    stage: str
    left: StageCost | None
    right: StageCost | None


def stage_pairs(comparison: Comparison) -> list[StagePair]:
    """The stages of one phase in which anything runs, then their total."""
    left, right = (_costs(side) for side in comparison.pair.sides)
    phase = comparison.phase
    return [
        StagePair(phase=phase, stage=name, left=left.get(name), right=right.get(name))
        for name in sorted({**left, **right}, key=lambda name: name == TOTAL)
        if name == TOTAL or _runs(left.get(name)) or _runs(right.get(name))
    ]


def total_pair(comparisons: Sequence[Comparison]) -> StagePair:
    """All phases together; weights that phases share count once."""
    left, right = (_total([comparison.pair.sides[place] for comparison in comparisons]) for place in (0, 1))
    return StagePair(phase="", stage=TOTAL, left=left, right=right)


def _total(sides: Sequence[Side]) -> StageCost:
    graphs = [side.graph for side in sides]
    modules = len({path for graph in graphs for path in graph.call_counts})
    totals = [_costs(side)[TOTAL] for side in sides]
    return sum_of_stages(TOTAL, totals, modules=modules, parameters=count_distinct_parameters(graphs))


def _runs(cost: StageCost | None) -> bool:
    return cost is not None and bool(cost.calls or cost.ops)


def _costs(side: Side) -> dict[str, StageCost]:
    """By stage and in total. Without the order of calls stages cannot be separated, and only totals are known."""
    graph = side.graph
    if graph.calls is None:
        return {TOTAL: _counted_only(graph)}
    costs = side.stage_costs
    by_name = {**{stage.name: stage for stage in costs.stages}, TOTAL: costs.total}
    return by_name if knows_cost(graph) else {name: _without_cost(cost) for name, cost in by_name.items()}


def _without_cost(cost: StageCost) -> StageCost:
    return replace(
        cost,
        flops=None,
        vector_flops=None,
        bytes_moved=None,
        activation_bytes=None,
        peak_live_bytes=None,
        collectives=None,
        collective_bytes=None,
    )


def _counted_only(graph: CallGraph) -> StageCost:
    return StageCost(
        name=TOTAL,
        modules=len(graph.call_counts),
        calls=sum(graph.call_counts.values()),
        parameters=count_distinct_parameters([graph]),
        ops=None,
        flops=None,
        vector_flops=None,
        bytes_moved=None,
        activation_bytes=None,
        peak_live_bytes=None,
        collectives=None,
        collective_bytes=None,
        unpriced=(),
    )


def stages_by_name(comparisons: Sequence[Comparison]) -> dict[str, StagePair]:
    """`stage` where only one phase has it, `phase.stage` for each, and `total` for everything."""
    pairs = [pair for comparison in comparisons for pair in stage_pairs(comparison)]
    stages = [pair.stage for pair in pairs]
    short = {pair.stage: pair for pair in pairs if pair.stage != TOTAL and stages.count(pair.stage) == 1}
    return {**short, TOTAL: total_pair(comparisons), **{f"{pair.phase}.{pair.stage}": pair for pair in pairs}}


Relation = Callable[[Fraction, Fraction], bool]

RELATIONS: MappingProxyType[str, Relation] = MappingProxyType({"<=": le, ">=": ge, "==": eq, "<": lt, ">": gt})
METRICS: MappingProxyType[str, Callable[[StageCost], int | None]] = MappingProxyType(
    {
        "flops": lambda cost: cost.flops,
        "macs": lambda cost: cost.macs,
        "bytes": lambda cost: cost.bytes_moved,
        "parameters": lambda cost: cost.parameters,
        "activation_bytes": lambda cost: cost.activation_bytes,
        "calls": lambda cost: cost.calls,
        "ops": lambda cost: cost.ops,
        "collectives": lambda cost: cost.collectives,
        "collective_bytes": lambda cost: cost.collective_bytes,
    }
)
_GRAMMAR = re.compile(
    r"\s*(?P<stage>[^<>=]+)\.(?P<metric>\w+)\s*(?P<relation><=|>=|==|<|>)"
    r"\s*(?P<sign>[+-]?)(?P<amount>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)?\s*(?P<percent>%?)\s*"
)
_EXAMPLES = '"prefill.flops<=+1%", "total.bytes<=1e12", "decode.calls<=+0", "sam.ops=="'


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit on one figure of the right side: an amount, or what the left side has plus an amount or a share of it."""

    text: str
    stage: str
    metric: str
    relation: str
    amount: Fraction
    share: Fraction  # of what the left side has

    def limit(self, left: int | None) -> Fraction | None:
        """The most or least that the right side may have; None where it depends on a left side that is not known."""
        if not self.share:
            return self.amount
        return None if left is None else self.share * left + self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheck:
    """A budget and the figures it was checked on. What is not known cannot be shown to hold, so it does not."""

    budget: Budget
    left: int | None
    right: int | None
    limit: Fraction | None

    @property
    def holds(self) -> bool:
        """Whether the right side keeps to the budget."""
        if self.right is None or self.limit is None:
            return False
        return RELATIONS[self.budget.relation](Fraction(self.right), self.limit)


def parse_budget(text: str) -> Budget:
    """Read a budget; its stage is looked up later, when the traces are known."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise _refusal(text, "a budget is STAGE.METRIC, a relation and an amount")
    _require_known("metric", match["metric"], METRICS)
    sign, amount, percent = match["sign"], match["amount"], match["percent"]
    if amount is None:
        if match["relation"] != "==" or sign or percent:
            raise _refusal(text, "only == may stand alone, for the same as the left side")
        value, share = Fraction(0), Fraction(1)
    elif percent and not sign:
        raise _refusal(text, f"{amount}% could mean a share or a change; write +{amount}% for a change")
    elif percent:
        value, share = Fraction(0), 1 + Fraction(sign + amount) / 100
    else:
        value, share = Fraction(sign + amount), Fraction(1 if sign else 0)
    return Budget(
        text=text.strip(),
        stage=match["stage"],
        metric=match["metric"],
        relation=match["relation"],
        amount=value,
        share=share,
    )


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is no budget.", why=why, fix=f"write it like one of {_EXAMPLES}")


def check_budget(budget: Budget, stages: Mapping[str, StagePair]) -> BudgetCheck:
    """Check a budget on the stages by name."""
    _require_known("stage", budget.stage, stages)
    pair = stages[budget.stage]
    figure = METRICS[budget.metric]
    left, right = (None if cost is None else figure(cost) for cost in (pair.left, pair.right))
    return BudgetCheck(budget=budget, left=left, right=right, limit=budget.limit(left))


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise UsageError(
            f"No {kind} named {name!r} to hold a budget against.",
            why=f"known {kind}s: {', '.join(known)}",
            fix=f"did you mean {close[0]!r}?" if close else "pick one of the known names",
        )
