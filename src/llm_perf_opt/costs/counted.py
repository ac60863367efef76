"""The trace's own figures: each stage as it ran inside the whole run, in the terms of the other sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds_by_stage
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.source_figures import BlindSpot, Method, OperatorFigure, SourceFigures, WorkFamily
from llm_perf_opt.core.tensor_formats import is_weight_format
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.parameters import active_parameters, parameters_by_stage
from llm_perf_opt.costs.stage_costs import StageCost, stage_costs
from llm_perf_opt.ops.cost import elements_of
from llm_perf_opt.ops.table import op_family, price

if TYPE_CHECKING:
    from llm_perf_opt.costs.memory.need import RunMemory

SOURCE = "counted"
_CHOOSERS = ("aten.topk.default", "aten.argmax.default", "aten.max.dim")  # how a router takes its experts


def counted(graph: CallGraph) -> tuple[SourceFigures, ...]:
    """The figures of each stage that ran; a trace without ops, or that stopped half-way, has figures of none."""
    if graph.stopped_in is not None:
        return (_stopped(graph),)
    costs = stage_costs(graph).ran
    if graph.ops is None:
        return tuple(_without_ops(graph, stage) for stage in costs)
    kinds, parameters, active = count_kinds_by_stage(graph), parameters_by_stage(graph), active_parameters(graph)
    return tuple(
        _figures_of_stage(graph, stage, kinds[stage.name], parameters[stage.name], active[stage.name])
        for stage in costs
    )


def counted_run(graphs: Sequence[CallGraph], memory: RunMemory | None) -> tuple[SourceFigures, ...]:
    """All phases of one run; what they hold in memory is given with the last of them."""
    counts = [figures for graph in graphs for figures in counted(graph)]
    if not counts or memory is None:
        return tuple(counts)
    last, cache = graphs[-1], memory.cache
    grown = last.runtime.get("decode_steps", 0) * last.workload.get("batch", 1) if last.phase == "decode" else 0
    counts[-1] = replace(
        counts[-1],
        weight_bytes=memory.phases[-1].weight_bytes,
        kv_cache_bytes=None if cache is None else cache.bytes + grown * cache.bytes_per_token,
        kv_bytes_per_token=None if cache is None else cache.bytes_per_token,
    )
    return tuple(counts)


def _figures_of_stage(
    graph: CallGraph, stage: StageCost, kinds: Mapping[OpKind, int], parameters: int, active: int | None
) -> SourceFigures:
    operators = tuple(sorted(_operators(kinds), key=lambda operator: -(operator.flops or 0)))
    return SourceFigures(
        source=SOURCE,
        phase=graph.phase,
        stage=stage.name,
        method=Method.EXTRACTED,
        flops=None if stage.ops is None else stage.flops or 0,  # what it lacks is in the blind spots
        parameters=parameters,
        activations=None if stage.ops is None else _activations(operators),
        bytes_moved=None if stage.unpriced else stage.bytes_moved,
        active_parameters=active,
        routing=_routing(graph, kinds),
        stored_as=_stored_as(graph),
        bytes_as_held=_bytes_as_held(kinds) if _has_formats_alone(graph) and not stage.unpriced else None,
        operators=operators,
        blind_spots=tuple(
            BlindSpot(cause="op-without-formula", operator=op.name, calls=op.count, flops=op.flops_bound, is_bound=True)
            for op in stage.unpriced
        ),
    )


def _activations(operators: Sequence[OperatorFigure]) -> int:
    """By fvcore's convention, in which fused attention puts out nothing."""
    return sum(operator.activations or 0 for operator in operators if operator.family is not WorkFamily.ATTENTION)


def _bytes_as_held(kinds: Mapping[OpKind, int]) -> int | None:
    """What the ops would move with every weight in the type of the tensors that it meets, as the code holds it."""
    return known_sum(
        None if (cost := price(_held(kind))) is None else count * cost.bytes_moved for kind, count in kinds.items()
    )


def _has_formats_alone(graph: CallGraph) -> bool:
    """Whether all weights are stored in formats, so that no tensor of the graph tells the original torch type."""
    names = graph.deployment.get("weights")
    return isinstance(names, str) and all(map(is_weight_format, names.split(" + ")))


def _held(kind: OpKind) -> OpKind:
    dense = [meta.dtype for meta in (*kind.inputs, *kind.outputs) if not is_weight_format(meta.dtype)]
    if not dense or not any(is_weight_format(meta.dtype) for meta in kind.inputs):
        return kind
    inputs = tuple(replace(meta, dtype=dense[0]) if is_weight_format(meta.dtype) else meta for meta in kind.inputs)
    return replace(kind, inputs=inputs)


def _stored_as(graph: CallGraph) -> str | None:
    formats = (f"{what} {graph.deployment[what]}" for what in ("weights", "cache") if what in graph.deployment)
    return ", ".join(formats) or None


def _routing(graph: CallGraph, kinds: Mapping[OpKind, int]) -> str | None:
    """The policy that stood in for the routers of a stage; None where no op in it takes the best of scores."""
    policy: str | None = graph.workload.get("routing")
    return policy if any(kind.name in _CHOOSERS for kind in kinds) else None


def _operators(kinds: Mapping[OpKind, int]) -> Iterator[OperatorFigure]:
    """One figure per op name that does matrix work or has no price; the elementwise rest is in no total."""
    totals: dict[str, tuple[int, int, int]] = {}
    unpriced: dict[str, int] = {}
    for kind, count in kinds.items():
        cost = price(kind)
        if cost is None:
            unpriced[kind.name] = unpriced.get(kind.name, 0) + count
        elif cost.flops:
            flops, calls, outputs = totals.get(kind.name, (0, 0, 0))
            totals[kind.name] = (flops + cost.flops * count, calls + count, outputs + elements_of(kind.outputs) * count)
    for name, (flops, calls, outputs) in totals.items():
        yield OperatorFigure(name=name, family=op_family(name), flops=flops, calls=calls, activations=outputs)
    for name, calls in unpriced.items():
        yield OperatorFigure(name=name, family=WorkFamily.OTHER, flops=None, calls=calls)


def _stopped(graph: CallGraph) -> SourceFigures:
    """What ran until then is no figure of any stage: the rest of it is missing."""
    return SourceFigures(
        source=SOURCE,
        phase=graph.phase,
        stage=graph.phase,
        method=Method.EXTRACTED,
        failure=f"the run stopped in {graph.stopped_in or '(root)'}, and what follows is missing",
    )


def _without_ops(graph: CallGraph, stage: StageCost) -> SourceFigures:
    return SourceFigures(
        source=SOURCE,
        phase=graph.phase,
        stage=stage.name,
        method=Method.EXTRACTED,
        parameters=stage.parameters,
        failure=f"the tracer {graph.tracer!r} sees no ops",
    )
