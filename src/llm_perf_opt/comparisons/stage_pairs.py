"""Stages of two runs side by side: what each runs and costs, by the names that a person gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.comparisons.causes import Comparison
from llm_perf_opt.comparisons.side import Side, knows_cost
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.costs.parameters import count_distinct_parameters
from llm_perf_opt.costs.stage_costs import StageCost, sum_of_stages

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
