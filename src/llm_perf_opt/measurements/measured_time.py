"""Measured time on the priced graph: how long each stage and module took, and how many FLOPs per second that was.

Time comes from a trace that measured it (hooks, profiler), FLOPs from one that knows the ops (weightless), of the same
model, workload and phase. Stages and modules are matched by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, stage_names, stage_of_calls
from llm_perf_opt.core.callgraph.records import CallColumns
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.units import format_seconds
from llm_perf_opt.costs.coverage import known_sum
from llm_perf_opt.costs.stage_costs import module_costs, outer_calls, stage_costs

_NS_PER_S = 10**9
_MODULES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    """A stage or a module. None is unknown: no device took part, or no trace holds the ops.

    `own_ns` leaves out the modules it calls; of a stage that is the same as `wall_ns`. A device works while the host
    goes on, so with one the rate comes from its kernels and `wall_ns` is what the host saw.
    """

    name: str
    calls: int
    own_ns: int
    wall_ns: int
    device_ns: int | None
    flops: int | None

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs over the time of the kernels where a device took part, over wall time otherwise."""
        spent_ns = self.wall_ns if self.device_ns is None else self.device_ns
        return None if self.flops is None or not spent_ns else self.flops * _NS_PER_S / spent_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Stages are disjoint and add up to `total`; modules, the longest own time first, overlap where one calls one."""

    stages: tuple[MeasuredTime, ...]
    modules: tuple[MeasuredTime, ...]
    total: MeasuredTime
    recounted: tuple[str, ...]  # modules that the two traces call differently often, so that their FLOPs do not apply


def measured_times(measured: CallGraph, priced: CallGraph | None) -> MeasuredTimes:
    """Join the times of `measured` with the FLOPs of `priced`; without it the FLOPs are unknown."""
    calls = _timed_calls(measured)
    if priced is not None and (priced.model, priced.phase) != (measured.model, measured.phase):
        raise PerfOptError(
            f"{measured.model}, {measured.phase} cannot be priced by a trace of {priced.model}, {priced.phase}.",
            why="FLOPs of another run would give a rate that nothing achieved",
            fix="trace the same model and workload with the weightless tracer",
        )
    own_ns = _own_times(calls)
    device_ns = _own_device_times(measured)
    flops = {} if priced is None else {stage.name: stage.flops for stage in stage_costs(priced).stages}
    stages = _stages(measured, own_ns, device_ns, flops)
    modules = _modules(measured, own_ns, device_ns, priced)
    return MeasuredTimes(
        stages=stages,
        modules=modules,
        total=_sum("total", stages),
        recounted=() if priced is None else tuple(_recounted(measured, priced)),
    )


def _timed_calls(graph: CallGraph) -> CallColumns:
    calls = calls_of(graph)
    if not calls.started_ns:
        raise PerfOptError(
            "The trace holds no times.",
            why=f"the tracer {graph.tracer!r} does not measure them",
            fix="trace with --tracer hooks or --tracer profiler",
        )
    return calls


def _own_times(calls: CallColumns) -> list[int]:
    """Per call, its time without the calls it made."""
    own = [ended - started for started, ended in zip(calls.started_ns, calls.ended_ns, strict=True)]
    spans = list(own)
    for span, parent in zip(spans, calls.parent, strict=True):
        if parent >= 0:
            own[parent] -= span
    return own


def _own_device_times(graph: CallGraph) -> list[int] | None:
    """Per call, the time of the kernels that its own ops launched."""
    if graph.ops is None or not graph.ops.device_ns:
        return None
    spent = [0] * (len(calls_of(graph).path) + 1)  # the last entry is what call -1, "outside any", arrives at
    for call, device_ns in zip(graph.ops.call, graph.ops.device_ns, strict=True):
        spent[call] += device_ns
    return spent[:-1]


def _stages(
    graph: CallGraph, own_ns: Sequence[int], device_ns: Sequence[int] | None, flops: Mapping[str, int | None]
) -> tuple[MeasuredTime, ...]:
    calls, wall, device = Counter[int](), Counter[int](), Counter[int]()
    for call, stage in enumerate(stage_of_calls(graph)):
        calls[stage] += 1
        wall[stage] += own_ns[call]
        device[stage] += 0 if device_ns is None else device_ns[call]
    return tuple(
        MeasuredTime(
            name=name,
            calls=calls[row],
            own_ns=wall[row],
            wall_ns=wall[row],
            device_ns=None if device_ns is None else device[row],
            flops=flops.get(name),
        )
        for row, name in enumerate(stage_names(graph))
        if calls[row]
    )


def _modules(
    graph: CallGraph, own_ns: Sequence[int], device_ns: Sequence[int] | None, priced: CallGraph | None
) -> tuple[MeasuredTime, ...]:
    calls = calls_of(graph)
    own, inclusive, device = Counter[str](), Counter[str](), Counter[str]()
    for call, row in enumerate(calls.path):
        own[graph.paths[row]] += own_ns[call]
    device_below = None if device_ns is None else _with_children(device_ns, calls)
    for call in outer_calls(calls):
        path = graph.paths[calls.path[call]]
        inclusive[path] += calls.ended_ns[call] - calls.started_ns[call]
        device[path] += 0 if device_below is None else device_below[call]
    flops = _module_flops(graph, priced)
    return tuple(
        MeasuredTime(
            name=path,
            calls=graph.call_counts[path],
            own_ns=own_time,
            wall_ns=inclusive[path],
            device_ns=None if device_below is None else device[path],
            flops=flops.get(path),
        )
        for path, own_time in own.most_common()
    )


def _with_children(values: Sequence[int], calls: CallColumns) -> list[int]:
    total = list(values)
    for call in range(len(total) - 1, -1, -1):  # a child is entered after its parent
        if calls.parent[call] >= 0:
            total[calls.parent[call]] += total[call]
    return total


def _module_flops(measured: CallGraph, priced: CallGraph | None) -> dict[str, int]:
    """Inclusive FLOPs of the modules that both traces call equally often."""
    if priced is None or priced.ops is None:
        return {}
    differing = set(_recounted(measured, priced))
    by_path = module_costs(priced).by_path
    return {path: cost.inclusive.flops for path, cost in by_path.items() if path not in differing}


def _recounted(measured: CallGraph, priced: CallGraph) -> Iterable[str]:
    paths = dict.fromkeys((*measured.call_counts, *priced.call_counts))
    return (path for path in paths if measured.call_counts.get(path) != priced.call_counts.get(path))


def _sum(name: str, stages: Sequence[MeasuredTime]) -> MeasuredTime:
    wall_ns = sum(stage.wall_ns for stage in stages)
    return MeasuredTime(
        name=name,
        calls=sum(stage.calls for stage in stages),
        own_ns=wall_ns,
        wall_ns=wall_ns,
        device_ns=known_sum((stage.device_ns for stage in stages), empty=0),
        flops=known_sum((stage.flops for stage in stages), empty=0),
    )


def time_report(measured: Sequence[CallGraph], priced: Sequence[CallGraph] = ()) -> Report:
    """Two tables per phase, stages and the modules with the most time of their own."""
    priced_by_phase = {graph.phase: graph for graph in priced}
    tables: list[Table] = []
    notes = [Note("Times are of one run, with the tracer's own work in them; a warm machine is faster.")]
    for graph in measured:
        times = measured_times(graph, priced_by_phase.get(graph.phase))
        tables += (_stage_table(graph, times), _module_table(graph, times))
        notes += _notes(graph, times, is_priced=graph.phase in priced_by_phase)
    title = f"{measured[0].model}: where the time goes" if measured else "where the time goes"
    return Report(title=title, tables=tuple(tables), notes=tuple(notes))


def _stage_table(graph: CallGraph, times: MeasuredTimes) -> Table:
    cells: dict[Column, Callable[[MeasuredTime], Cell]] = {
        Column("stage"): lambda time: time.name,
        Column("calls", Kind.COUNT): lambda time: time.calls,
        Column("time", Kind.SECONDS): lambda time: time.wall_ns / _NS_PER_S,
        Column("FLOPs", Kind.FLOPS): lambda time: time.flops,
        Column("achieved", Kind.FLOPS_PER_S): lambda time: time.flops_per_s,
    }
    if times.total.device_ns is not None:
        cells[Column("device time", Kind.SECONDS)] = lambda time: (time.device_ns or 0) / _NS_PER_S
    return table_of(f"Time by stage, {graph.phase}", times.stages, cells, total=times.total)


def _module_table(graph: CallGraph, times: MeasuredTimes) -> Table:
    return table_of(
        f"Modules with the most time of their own, {graph.phase}",
        times.modules[:_MODULES_SHOWN],
        {
            Column("module"): lambda time: time.name or "(root)",
            Column("class"): lambda time: graph.module_types.get(time.name, ""),
            Column("calls", Kind.COUNT): lambda time: time.calls,
            Column("own time", Kind.SECONDS): lambda time: time.own_ns / _NS_PER_S,
            Column("time", Kind.SECONDS): lambda time: time.wall_ns / _NS_PER_S,
            Column("FLOPs", Kind.FLOPS): lambda time: time.flops,
            Column("achieved", Kind.FLOPS_PER_S): lambda time: time.flops_per_s,
        },
    )


def _notes(graph: CallGraph, times: MeasuredTimes, *, is_priced: bool) -> list[Note]:
    notes = []
    left_out = times.modules[_MODULES_SHOWN:]
    if left_out:
        rest = format_seconds(sum(time.own_ns for time in left_out) / _NS_PER_S)
        notes.append(Note(f"{graph.phase}: {len(left_out)} more modules take {rest} of own time together."))
    if not is_priced:
        notes.append(Note(f"{graph.phase}: no weightless trace was given, so FLOPs and rates are unknown."))
    if times.recounted:
        notes.append(
            Note(
                f"{graph.phase}: {len(times.recounted)} modules are called differently often in the priced trace "
                "(routing); their FLOPs are in the stage and not in their own row.",
                Level.WARNING,
            )
        )
    return notes
