"""What each stage and each module of a run costs. Stages are disjoint, and together they are the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import (
    calls_of,
    count_kinds,
    count_kinds_by_stage,
    ops_in_call,
    ops_of,
    stage_names,
    stage_of_calls,
)
from llm_perf_opt.core.callgraph.records import CallColumns, OpKind
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, table_of
from llm_perf_opt.core.units import format_number_of, macs_of
from llm_perf_opt.core.witness import Witness
from llm_perf_opt.costs.collectives import CollectiveTotal, by_stage
from llm_perf_opt.costs.coverage import (
    UnpricedOp,
    counted_or_unknown,
    known_sum,
    merged_unpriced,
    priced_sum,
    priced_total,
)
from llm_perf_opt.costs.memory.live_memory import memory_by_stage
from llm_perf_opt.costs.ops_witness import ops_witness
from llm_perf_opt.costs.parameters import count_distinct_parameters, parameters_by_stage
from llm_perf_opt.costs.run_description import deployment_notes, run_notes, workload_note
from llm_perf_opt.ops.cost import FREE, OpCost
from llm_perf_opt.ops.table import price


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage, or the whole run. None is unknown: the tracer sees no ops that have a price, or follows no memory.

    `modules` counts the distinct modules called in the stage; one that is called in two stages counts in both.
    `flops`, `vector_flops` and `bytes_moved` are sums over the ops that have a price, and unknown where none of them
    adds anything; the others are in `unpriced`, and where there are any, these figures are lower bounds.
    `activation_bytes` is all memory the stage's ops brought to life, `peak_live_bytes` the most that was alive at
    once while one of its ops ran, inputs, activations of earlier stages and the scratch of composite ops included.
    `collective_bytes` are the payloads of its `collectives`: what goes to and comes from other ranks, and no FLOPs.
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
    collectives: int | None
    collective_bytes: int | None
    unpriced: tuple[UnpricedOp, ...]

    @property
    def macs(self) -> int | None:
        """Multiply-adds, each of which is two FLOPs."""
        return macs_of(self.flops)

    @property
    def unpriced_ops(self) -> int:
        """How many ops ran without a price."""
        return sum(op.count for op in self.unpriced)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Every stage in order, the phase last, and the whole run as if it were one stage."""

    stages: tuple[StageCost, ...]
    total: StageCost

    @property
    def ran(self) -> tuple[StageCost, ...]:
        """The stages in which anything ran."""
        return tuple(stage for stage in self.stages if stage.calls or stage.ops)


def stage_costs(graph: CallGraph) -> StageCosts:
    """Calls, parameters, FLOPs, bytes and memory of each stage, and of the run."""
    calls, stages = calls_of(graph), stage_of_calls(graph)
    parameters = parameters_by_stage(graph)
    has_prices = graph.ops is not None and any(price(kind) is not None for kind in graph.op_kinds)
    counts = count_kinds_by_stage(graph) if has_prices else None
    memory = memory_by_stage(graph) if has_prices else None
    collectives = by_stage(graph)
    costs = []
    for row, name in enumerate(stage_names(graph)):
        paths = [path for path, stage in zip(calls.path, stages, strict=True) if stage == row]
        born, peak = memory[row] if memory else (None, None)
        costs.append(
            _stage_cost(
                name,
                paths,
                counts[name] if counts else None,
                parameters=parameters[name],
                activation_bytes=born,
                peak_live_bytes=peak,
                collectives=collectives.get(name, CollectiveTotal(count=0, payload_bytes=0)),
            )
        )
    total = sum_of_stages("total", costs, modules=len(set(calls.path)), parameters=sum(parameters.values()))
    _assert_complete(graph, total, has_prices=has_prices)
    return StageCosts(stages=tuple(costs), total=total)


def _stage_cost(
    name: str,
    paths: list[int],
    counts: dict[OpKind, int] | None,
    *,
    parameters: int,
    activation_bytes: int | None,
    peak_live_bytes: int | None,
    collectives: CollectiveTotal,
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
        collectives=None if counts is None else collectives.count,
        collective_bytes=None if counts is None else collectives.payload_bytes,
        unpriced=unpriced,
    )


def sum_of_stages(name: str, stages: Sequence[StageCost], *, modules: int, parameters: int) -> StageCost:
    """Disjoint stages as one; one unknown part makes a sum unknown, and of the peaks the highest counts.

    Modules and parameters may be shared between stages, so the caller counts them.
    """
    peaks = [stage.peak_live_bytes for stage in stages]
    known = [peak for peak in peaks if peak is not None]
    return StageCost(
        name=name,
        modules=modules,
        calls=sum(stage.calls for stage in stages),
        parameters=parameters,
        ops=known_sum((stage.ops for stage in stages), empty=0),
        flops=priced_sum(stage.flops for stage in stages),
        vector_flops=priced_sum(stage.vector_flops for stage in stages),
        bytes_moved=priced_sum(stage.bytes_moved for stage in stages),
        activation_bytes=known_sum((stage.activation_bytes for stage in stages), empty=0),
        peak_live_bytes=max(known, default=0) if len(known) == len(peaks) else None,
        collectives=known_sum((stage.collectives for stage in stages), empty=0),
        collective_bytes=known_sum((stage.collective_bytes for stage in stages), empty=0),
        unpriced=merged_unpriced(op for stage in stages for op in stage.unpriced),
    )


def _assert_complete(graph: CallGraph, total: StageCost, *, has_prices: bool) -> None:
    """The stages hold every call and every op once, hence the same cost as the run taken whole."""
    assert total.calls == len(calls_of(graph).path)
    if has_prices:
        cost, _ = priced_total(count_kinds(graph))
        summed = (total.flops or 0, total.vector_flops or 0, total.bytes_moved or 0)
        assert summed == (cost.flops, cost.vector_flops, cost.bytes_moved)


_CELLS: Mapping[Column, Callable[[StageCost], Cell]] = {
    Column("stage"): lambda stage: stage.name,
    Column("modules", Kind.COUNT): lambda stage: stage.modules,
    Column("calls", Kind.COUNT): lambda stage: stage.calls,
    Column("parameters", Kind.COUNT): lambda stage: stage.parameters,
    Column("FLOPs", Kind.FLOPS): lambda stage: stage.flops,
    Column("MACs", Kind.MACS): lambda stage: stage.macs,
    Column("bytes moved", Kind.BYTES): lambda stage: stage.bytes_moved,
    Column("activation bytes", Kind.BYTES): lambda stage: stage.activation_bytes,
    Column("unpriced ops", Kind.COUNT): lambda stage: None if stage.ops is None else stage.unpriced_ops,
}
_COLLECTIVE_CELLS: Mapping[Column, Callable[[StageCost], Cell]] = {  # of a rank that shares the model with others
    Column("collectives", Kind.COUNT): lambda stage: stage.collectives,
    Column("collective payload", Kind.BYTES): lambda stage: stage.collective_bytes,
}
_NAMED_SITES = 5


_COUNTED = "counted in the trace: calls, distinct weights, and storages as the stage's ops make and free them"


@dataclass(frozen=True, eq=False)
class _StageWitnesses:
    """The figures of the table of stages as sums over the ops of each stage."""

    graphs: Sequence[CallGraph]
    columns: tuple[Column, ...]

    @cached_property
    def _counts(self) -> list[dict[OpKind, int]]:
        """By row of the table: the stages that ran, phase after phase."""
        ran = [(graph, stage.name) for graph in self.graphs for stage in stage_costs(graph).ran]
        by_stage = {id(graph): count_kinds_by_stage(graph) for graph in self.graphs if graph.ops is not None}
        return [by_stage.get(id(graph), {}).get(name, {}) for graph, name in ran]

    def witness(self, row: int, place: int) -> Witness | None:
        """How the cell comes about; None for the total, and for figures that are no sums over ops."""
        return ops_witness(self._counts[row], self.columns[place].name) if row < len(self._counts) else None


def run_costs(graphs: Sequence[CallGraph], stages: Sequence[StageCost] | None = None) -> StageCosts:
    """The stages of all phases of one run that ran, and the run; `stages` are those, if they are known already.

    In the total, modules and parameters are counted once however many phases use them.
    """
    ran = [stage for graph in graphs for stage in stage_costs(graph).ran] if stages is None else stages
    total = sum_of_stages(
        "total",
        ran,
        modules=len({path for graph in graphs for path in graph.call_counts}),
        parameters=count_distinct_parameters(graphs),
    )
    return StageCosts(stages=tuple(ran), total=total)


def stage_report(graphs: Sequence[CallGraph], costs: StageCosts | None = None) -> Report:
    """The stages of all phases of one run, in order; `costs` are the run's, if they are known already."""
    run = run_costs(graphs) if costs is None else costs
    cells = {**_CELLS, **_COLLECTIVE_CELLS} if run.total.collectives else _CELLS
    table = table_of("Cost by stage", run.stages, cells, total=run.total, origin=_COUNTED)
    table = replace(table, witnesses=_StageWitnesses(graphs, tuple(cells)).witness)
    model = graphs[0].model if graphs else ""
    notes = tuple(_notes(graphs, run.total))
    return Report(title=f"{model}: what runs and what it costs", tables=(table,), notes=notes)


def _notes(graphs: Sequence[CallGraph], total: StageCost) -> Iterator[Note]:
    if graphs and graphs[0].workload:
        yield workload_note(graphs)
    yield from deployment_notes(graphs)
    yield Note(
        "FLOPs count matmuls, convolutions and attention; a multiply-add counts as two, "
        "and causal attention is not halved."
    )
    if total.ops is None:
        yield Note("This trace holds no ops that could be priced: FLOPs and bytes are unknown.", Level.WARNING)
    yield from (Note(op.sentence, Level.WARNING) for op in total.unpriced)
    for graph in graphs:
        if graph.stopped_in is not None:
            yield Note(f"{graph.phase}: the run stopped in {graph.stopped_in}; what follows is missing.", Level.WARNING)
    yield from run_notes(graphs)
    yield from _oracle_notes(graphs)


def _oracle_notes(graphs: Sequence[CallGraph]) -> Iterator[Note]:
    """One sentence per op and policy: where the trace is a model of the run and not the run itself."""
    counts: Counter[tuple[str, str]] = Counter()
    sites: dict[tuple[str, str], dict[str, None]] = {}
    for graph in graphs:
        for answer in graph.oracle_answers:
            counts[answer.op, answer.policy] += answer.count
            sites.setdefault((answer.op, answer.policy), {})[answer.site] = None
    for (op, policy), count in counts.items():
        places = list(sites[op, policy])
        shown = ", ".join(places[:_NAMED_SITES]) + (", ..." if len(places) > _NAMED_SITES else "")
        often = format_number_of(count, "time")
        yield Note(f"No weights: {op} was answered {often} by policy {policy!r}, asked at {shown}.")


def last_distinct_call(graph: CallGraph, path: str) -> int | None:
    """The call with the kind of input that appeared last for the first time; None: the module was never called."""
    if path not in graph.paths:
        return None
    calls, wanted = calls_of(graph), graph.paths.index(path)
    starts = list(accumulate(calls.input_count, initial=0))
    seen: dict[tuple[int, ...], int] = {}
    for call, row in enumerate(calls.path):
        if row == wanted:
            seen.setdefault(tuple(calls.input_metas[starts[call] : starts[call + 1]]), call)
    return list(seen.values())[-1] if seen else None


def kinds_in_call(graph: CallGraph, path: str) -> dict[OpKind, int] | None:
    """The ops of that call, including the ops of the modules below it."""
    call = last_distinct_call(graph, path)
    return None if call is None else count_kinds(graph, ops_in_call(graph, call))


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """A called module over all its calls. `own` are the ops run directly in it, `inclusive` adds its children's.

    A call inside another call of the same module is part of the outer one and counts once in `inclusive`.
    """

    calls: int
    own: OpCost
    inclusive: OpCost
    unpriced_ops: int  # run directly in it, and in neither cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCosts:
    """Costs by module path; `by_edge` splits a shared module's inclusive cost by `(parent, child)`.

    The edges into a module add up to its inclusive cost, apart from calls that no module made and calls inside a call
    of the same module. `outside` are ops that ran in no module at all.
    """

    by_path: Mapping[str, ModuleCost]
    by_edge: Mapping[tuple[str, str], OpCost]
    outside: OpCost


def module_costs(graph: CallGraph) -> ModuleCosts:
    """Own and inclusive cost of every called module, and of every edge between two."""
    calls = calls_of(graph)
    own, outside = _own_costs(graph)
    inclusive = _inclusive_costs(own, calls)
    paths = [graph.paths[row] for row in calls.path]
    own_by_path = _add_up(zip(paths, own, strict=True))
    inclusive_by_path = _add_up((paths[call], inclusive[call]) for call in outer_calls(calls))
    unpriced = _count_unpriced(graph, paths)
    called = [(parent, call) for call, parent in enumerate(calls.parent) if parent >= 0]
    return ModuleCosts(
        by_path={
            path: ModuleCost(
                calls=calls_of_path,
                own=own_by_path[path],
                inclusive=inclusive_by_path[path],
                unpriced_ops=unpriced[path],
            )
            for path, calls_of_path in Counter(paths).items()
        },
        by_edge=_add_up(((paths[parent], paths[call]), inclusive[call]) for parent, call in called),
        outside=outside,
    )


def _own_costs(graph: CallGraph) -> tuple[list[OpCost], OpCost]:
    """Per call, the cost of the ops run directly in it; and the cost of the ops outside any call."""
    ops = ops_of(graph)
    prices = [price(kind) or FREE for kind in graph.op_kinds]
    # Plain integers for the million ops, one object for each of the far fewer calls; call -1 lands in the last place.
    columns = []
    for per_kind in zip(*((cost.flops, cost.vector_flops, cost.bytes_moved) for cost in prices), strict=True):
        column = [0] * (len(calls_of(graph).path) + 1)
        for call, kind in zip(ops.call, ops.kind, strict=True):
            column[call] += per_kind[kind]
        columns.append(column)
    *own, outside = (
        OpCost(flops=flops, vector_flops=vector_flops, bytes_moved=bytes_moved)
        for flops, vector_flops, bytes_moved in zip(*columns, strict=True)
    )
    return own, outside


def _inclusive_costs(own: list[OpCost], calls: CallColumns) -> list[OpCost]:
    inclusive = list(own)
    for call in range(len(own) - 1, -1, -1):  # a child is entered after its parent
        if calls.parent[call] >= 0:
            inclusive[calls.parent[call]] += inclusive[call]
    return inclusive


def outer_calls(calls: CallColumns) -> Iterator[int]:
    """Calls that are not inside another call of the same module."""
    open_calls: list[int] = []
    open_paths: Counter[int] = Counter()
    for call, (path, parent) in enumerate(zip(calls.path, calls.parent, strict=True)):
        while open_calls and open_calls[-1] != parent:
            open_paths[calls.path[open_calls.pop()]] -= 1
        if not open_paths[path]:
            yield call
        open_calls.append(call)
        open_paths[path] += 1


def _count_unpriced(graph: CallGraph, paths: list[str]) -> Counter[str]:
    """Module path -> ops run directly in it that have no price."""
    ops = ops_of(graph)
    is_unpriced = [price(kind) is None for kind in graph.op_kinds]
    if not any(is_unpriced):
        return Counter()
    return Counter(
        paths[call] for call, kind in zip(ops.call, ops.kind, strict=True) if is_unpriced[kind] and call >= 0
    )


def _add_up(costs: Iterable[tuple[Key, OpCost]]) -> dict[Key, OpCost]:
    by_key: dict[Key, OpCost] = {}
    for key, cost in costs:
        by_key[key] = by_key.get(key, FREE) + cost
    return by_key
