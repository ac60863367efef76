"""What each stage of a run costs. Stages are disjoint, and together they are the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.cost.coverage import (
    UnpricedOp,
    counted_or_unknown,
    merged_unpriced,
    priced_sum,
    priced_total,
)
from llm_perf_opt.analyses.cost.parameters import parameters_by_stage
from llm_perf_opt.analyses.memory.timeline import memory_by_stage
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, count_kinds, count_kinds_by_stage, stage_names, stage_of_calls
from llm_perf_opt.core.callgraph.records import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage, or the whole run. None is unknown: the tracer sees no ops that have a price, or follows no memory.

    `modules` counts the distinct modules called in the stage; one that is called in two stages counts in both.
    `flops`, `vector_flops` and `bytes_moved` are sums over the ops that have a price, and unknown where none of them
    adds anything; the others are in `unpriced`, and where there are any, these figures are lower bounds.
    `activation_bytes` is all memory the stage's ops brought to life, `peak_live_bytes` the most that was alive at
    once while one of its ops ran, inputs, activations of earlier stages and the scratch of composite ops included.
    """

    name: str
    modules: int
    calls: int
    parameters: int
    ops: int | None
    flops: int | None
    vector_flops: int | None
    bytes_moved: int | None
    activation_bytes: int | None
    peak_live_bytes: int | None
    unpriced: tuple[UnpricedOp, ...]

    @property
    def macs(self) -> int | None:
        """Multiply-adds, each of which is two FLOPs."""
        return None if self.flops is None else self.flops // 2

    @property
    def unpriced_ops(self) -> int:
        """How many ops ran without a price."""
        return sum(op.count for op in self.unpriced)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Every stage in order, the phase last, and the whole run as if it were one stage."""

    stages: tuple[StageCost, ...]
    total: StageCost


def stage_costs(graph: CallGraph) -> StageCosts:
    """Calls, parameters, FLOPs, bytes and memory of each stage, and of the run."""
    calls, stages = calls_of(graph), stage_of_calls(graph)
    parameters = parameters_by_stage(graph)
    has_prices = graph.ops is not None and any(price(kind) is not None for kind in graph.op_kinds)
    counts = count_kinds_by_stage(graph) if has_prices else None
    memory = memory_by_stage(graph) if has_prices else None
    found = []
    for row, name in enumerate(stage_names(graph)):
        paths = [path for path, stage in zip(calls.path, stages, strict=True) if stage == row]
        born, peak = memory[row] if memory else (None, None)
        found.append(
            _stage_cost(
                name,
                paths,
                counts[name] if counts else None,
                parameters=parameters[name],
                activation_bytes=born,
                peak_live_bytes=peak,
            )
        )
    total = sum_of_stages("total", found, modules=len(set(calls.path)), parameters=sum(parameters.values()))
    _assert_complete(graph, total, has_prices=has_prices)
    return StageCosts(stages=tuple(found), total=total)


def _stage_cost(
    name: str,
    paths: list[int],
    counts: dict[OpKind, int] | None,
    *,
    parameters: int,
    activation_bytes: int | None,
    peak_live_bytes: int | None,
) -> StageCost:
    cost, unpriced = priced_total(counts or {})
    hidden = sum(op.count for op in unpriced)
    return StageCost(
        name=name,
        modules=len(set(paths)),
        calls=len(paths),
        parameters=parameters,
        ops=None if counts is None else sum(counts.values()),
        flops=None if counts is None else counted_or_unknown(cost.flops, hidden),
        vector_flops=None if counts is None else counted_or_unknown(cost.vector_flops, hidden),
        bytes_moved=None if counts is None else counted_or_unknown(cost.bytes_moved, hidden),
        activation_bytes=activation_bytes,
        peak_live_bytes=peak_live_bytes,
        unpriced=unpriced,
    )


def sum_of_stages(name: str, stages: Sequence[StageCost], *, modules: int, parameters: int) -> StageCost:
    """Disjoint stages as one; one unknown part makes a sum unknown, and of the peaks the highest counts.

    Modules and parameters may be shared between stages, so the caller counts them.
    """
    peaks = _all_known(stage.peak_live_bytes for stage in stages)
    return StageCost(
        name=name,
        modules=modules,
        calls=sum(stage.calls for stage in stages),
        parameters=parameters,
        ops=_sum(stage.ops for stage in stages),
        flops=priced_sum(stage.flops for stage in stages),
        vector_flops=priced_sum(stage.vector_flops for stage in stages),
        bytes_moved=priced_sum(stage.bytes_moved for stage in stages),
        activation_bytes=_sum(stage.activation_bytes for stage in stages),
        peak_live_bytes=None if peaks is None else max(peaks, default=0),
        unpriced=merged_unpriced(op for stage in stages for op in stage.unpriced),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = _all_known(values)
    return None if known is None else sum(known)


def _all_known(values: Iterable[int | None]) -> list[int] | None:
    known = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return known


def _assert_complete(graph: CallGraph, total: StageCost, *, has_prices: bool) -> None:
    """The stages hold every call and every op once, hence the same cost as the run taken whole."""
    assert total.calls == len(calls_of(graph).path)
    if has_prices:
        cost, _ = priced_total(count_kinds(graph))
        told = (total.flops or 0, total.vector_flops or 0, total.bytes_moved or 0)
        assert told == (cost.flops, cost.vector_flops, cost.bytes_moved)
