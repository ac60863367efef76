"""The call graph of one phase: where it comes from, what was counted, and the columns it was counted from.

A call graph agrees with itself: the columns fit together (equal lengths, every index inside its table), and the
contract keys agree with each other and with the columns they were counted from. The checks run in an order in which
each may rely on those before it, and each one is one idea.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat
from operator import ge, gt, le, lt

from llm_perf_opt.core.callgraph import aggregates
from llm_perf_opt.core.callgraph.event_logs import ORIGINS
from llm_perf_opt.core.callgraph.records import (
    CallColumns,
    Json,
    Observation,
    OpColumns,
    OpKind,
    OracleAnswer,
    RunCounts,
    RunDetail,
    StorageColumns,
)


def shape_problems(graph: RunDetail) -> Iterator[str]:
    """Every misfit. A graph that has none can be walked without an index error."""
    yield from _table_problems(graph)
    if graph.calls is not None:
        yield from _call_problems(graph, graph.calls)
    if graph.ops is not None:
        yield from _op_problems(graph, graph.ops)
    if graph.storages is not None:
        yield from _storage_problems(graph)


def _table_problems(graph: RunDetail) -> Iterator[str]:
    if len(set(graph.paths)) < len(graph.paths):
        yield "paths: a module path has two rows"
    names = [parameter.name for parameter in graph.parameters]
    if len(set(names)) < len(names):
        yield "parameters: a name occurs twice"
    for row, kind in enumerate(graph.op_kinds):
        yield from _kind_problems(f"op_kinds[{row}] ({kind.name})", kind)
    storage_count = _storage_count(graph)
    for parameter in graph.parameters:
        if not -1 <= parameter.storage < storage_count:
            yield f"parameter {parameter.name!r}: there is no storage {parameter.storage}"


def _kind_problems(where: str, kind: OpKind) -> Iterator[str]:
    if kind.input_names and len(kind.input_names) != len(kind.inputs):
        yield f"{where}: {len(kind.input_names)} input names for {len(kind.inputs)} inputs"
    if kind.output_aliases and len(kind.output_aliases) != len(kind.outputs):
        yield f"{where}: {len(kind.output_aliases)} aliases for {len(kind.outputs)} outputs"
    for alias in kind.output_aliases:
        if not -1 <= alias < len(kind.inputs):
            yield f"{where}: an output shares the storage of input {alias}, of {len(kind.inputs)} inputs"
    for part in kind.parts:
        yield from _kind_problems(f"{where}, part {part.name}", part)


def _call_problems(graph: RunDetail, calls: CallColumns) -> Iterator[str]:
    columns = (calls.path, calls.parent, calls.first_op, calls.end_op, calls.input_count, calls.output_count)
    if len({len(column) for column in columns}) > 1:
        yield "calls: the columns differ in length"
        return
    yield from index_problems("calls.path", calls.path, len(graph.paths))
    yield from index_problems("calls.parent", calls.parent, len(calls.path), low=-1)
    if any(map(ge, calls.parent, count())):
        call = next(call for call, parent in enumerate(calls.parent) if parent >= call)
        yield f"call {call} has parent {calls.parent[call]}: a parent precedes its children"
    yield from _time_problems("calls.started_ns", calls.started_ns, calls.path)
    yield from _time_problems("calls.ended_ns", calls.ended_ns, calls.path)
    if len(calls.started_ns) != len(calls.ended_ns):
        yield "calls: they have times of beginning or of end, and not both"
    op_count = _op_count(graph)
    yield from index_problems("calls.first_op", calls.first_op, op_count + 1)
    yield from index_problems("calls.end_op", calls.end_op, op_count + 1)
    yield from index_problems("calls.input_count", calls.input_count, None)
    yield from index_problems("calls.output_count", calls.output_count, None)
    storage_count, meta_count = _storage_count(graph), len(graph.tensor_metas)
    for side, counts, metas, storages in (
        ("input", calls.input_count, calls.input_metas, calls.input_storages),
        ("output", calls.output_count, calls.output_metas, calls.output_storages),
    ):
        if not len(metas) == len(storages) == sum(counts):
            yield f"calls: {side}_count adds up to {sum(counts)}, for {len(metas)} metas and {len(storages)} storages"
        yield from index_problems(f"calls.{side}_metas", metas, meta_count)
        yield from index_problems(f"calls.{side}_storages", storages, storage_count)


def _op_problems(graph: RunDetail, ops: OpColumns) -> Iterator[str]:
    if len(ops.kind) != len(ops.call):
        yield f"ops: {len(ops.kind)} kinds for {len(ops.call)} calls"
        return
    yield from _time_problems("ops.duration_ns", ops.duration_ns, ops.kind)
    yield from _time_problems("ops.device_ns", ops.device_ns, ops.kind)
    misplaced = list(index_problems("ops.kind", ops.kind, len(graph.op_kinds)))
    yield from misplaced
    yield from index_problems("ops.call", ops.call, len(graph.calls.path) if graph.calls else 0, low=-1)
    if misplaced:
        return
    for side, storages, arity in (
        ("input", ops.input_storages, [len(kind.inputs) for kind in graph.op_kinds]),
        ("output", ops.output_storages, [len(kind.outputs) for kind in graph.op_kinds]),
    ):
        expected = sum(map(arity.__getitem__, ops.kind))
        if len(storages) != expected:
            yield f"ops: {len(storages)} {side} storages, the kinds have {expected} {side}s"
        yield from index_problems(f"ops.{side}_storages", storages, _storage_count(graph))


def _time_problems(name: str, times: array[int], rows: array[int]) -> Iterator[str]:
    """A time for every row or for none, and none before the beginning."""
    if len(times) not in (0, len(rows)):
        yield f"{name}: {len(times)} times for {len(rows)} rows"
    yield from index_problems(name, times, None)


def _storage_problems(graph: RunDetail) -> Iterator[str]:
    storages = graph.storages
    assert storages is not None
    columns: tuple[Sequence[object], ...] = (storages.bytes, storages.born_op, storages.freed_op, storages.origin)
    if len({len(column) for column in columns}) > 1:
        yield "storages: the columns differ in length"
    yield from index_problems("storages.bytes", storages.bytes, None)
    yield from index_problems("storages.born_op", storages.born_op, _op_count(graph) + 1)
    yield from index_problems("storages.freed_op", storages.freed_op, _op_count(graph) + 1)
    for origin in sorted(set(storages.origin).difference(ORIGINS)):
        yield f"storages: {origin!r} is no origin; known are {', '.join(ORIGINS)}"


def index_problems(name: str, column: array[int], end: int | None, *, low: int = 0) -> Iterator[str]:
    """The first value outside [low, end), by C loops over the whole column."""
    if not column:
        return
    smallest, largest = min(column), max(column)
    if smallest < low:
        yield f"{name}[{column.index(smallest)}] is {smallest}, below {low}"
    if end is not None and largest >= end:
        yield f"{name}[{column.index(largest)}] is {largest}, not below {end}"


def _storage_count(graph: RunDetail) -> int:
    return len(graph.storages.bytes) if graph.storages is not None else 0


def _op_count(graph: RunDetail) -> int:
    return len(graph.ops.kind) if graph.ops is not None else 0


_SHOWN_PER_CHECK = 20


def problems_of(graph: RunCounts) -> list[str]:
    """Every contradiction found, at most a screenful per check; columns that do not fit together end the search."""
    misfits = _some(shape_problems(graph))
    if misfits:
        return misfits
    checks: tuple[Callable[[RunCounts], Iterator[str]], ...] = (
        _count_problems,
        _edge_problems,
        _reach_problems,
        _declaration_problems,
        _children_problems,
        _observation_problems,
        _event_problems,
        _coverage_problems,
        call_problems,
        _recount_problems,
    )
    return [problem for check in checks for problem in _some(check(graph))]


def _some(problems: Iterator[str]) -> list[str]:
    shown = list(islice(problems, _SHOWN_PER_CHECK))
    more = sum(1 for _ in problems)
    return [*shown, f"and {more} more like the last one"] if more else shown


def _count_problems(graph: RunCounts) -> Iterator[str]:
    """Counts are counts, and what has own ops or was called from outside was called."""
    for name, counts, least in (
        ("call_counts", graph.call_counts, 1),
        ("root_calls", graph.root_calls, 1),
        ("edges", graph.edges, 1),
        ("op_call_counts", graph.op_call_counts, 0),
    ):
        for key, counted in counts.items():
            if counted < least:
                yield f"{name}[{key!r}] is {counted}, below {least}"
    for name, counts in (("root_calls", graph.root_calls), ("op_call_counts", graph.op_call_counts)):
        for path in counts:
            if path not in graph.call_counts:
                yield f"{name} has {path!r}, which was never called"


def _edge_problems(graph: RunCounts) -> Iterator[str]:
    """The calls on incoming edges, plus those that no module made, add up to the calls of a module."""
    incoming: Counter[str] = Counter()
    for edge, calls in graph.edges.items():
        sides = aggregates.split_edge(edge, graph.call_counts)
        if sides is None:
            yield f"edge {edge!r} does not name a parent and a child"
            continue
        for path in sides:
            if path not in graph.call_counts:
                yield f"edge {edge!r}: {path!r} was never called"
        incoming[sides[1]] += calls
    roots = _root_calls(graph, incoming)
    for path, calls in graph.call_counts.items():
        arrived = incoming[path] + roots.get(path, 0)
        if arrived != calls:
            yield f"{path!r} was called {calls} times, {incoming[path]} by edges and {roots.get(path, 0)} as a root"


def _root_calls(graph: RunCounts, incoming: Mapping[str, int]) -> Mapping[str, int]:
    """As recorded; a file that does not say has its roots where no edge arrives."""
    if graph.root_calls:
        return graph.root_calls
    return {path: calls for path, calls in graph.call_counts.items() if path not in incoming}


def _reach_problems(graph: RunCounts) -> Iterator[str]:
    """Calls form a tree, so every called module is reached from a root; a cycle on its own was never begun."""
    children: dict[str, list[str]] = {}
    incoming: set[str] = set()
    for edge in graph.edges:
        sides = aggregates.split_edge(edge, graph.call_counts)
        if sides is not None:
            children.setdefault(sides[0], []).append(sides[1])
            incoming.add(sides[1])
    to_visit = list(_root_calls(graph, dict.fromkeys(incoming, 1)))
    reached = set(to_visit)
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            if child not in reached:
                reached.add(child)
                to_visit.append(child)
    for path in graph.call_counts:
        if path not in reached:
            yield f"{path!r} was called, yet no chain of calls leads to it from a root"


def _declaration_problems(graph: RunCounts) -> Iterator[str]:
    """Every path in the file is a declared module, where the file declares modules at all."""
    if not graph.module_types:
        return
    for path in graph.call_counts:
        if path not in graph.module_types:
            yield f"{path!r} was called and is not declared"
    for path in (*graph.module_children, *graph.constructor_params):
        if path not in graph.module_types:
            yield f"{path!r} has children or constructor parameters and is not declared"
    if graph.stopped_in is not None and graph.stopped_in not in graph.module_types:
        yield f"the run stopped in {graph.stopped_in!r}, which is not declared"


def _children_problems(graph: RunCounts) -> Iterator[str]:
    """A module has one path, and the parent that this path names lists it: a shared module is one node, not several."""
    if not graph.module_children:
        return
    for path, children in graph.module_children.items():
        if len(set(children)) < len(children):
            yield f"{path!r} lists a child twice"
        for child in children:
            if child not in graph.module_types:
                yield f"{path!r} lists the child {child!r}, which is not declared; a shared module keeps its one path"
    listed = {(parent, child) for parent, children in graph.module_children.items() for child in children}
    for path in graph.module_types:
        parent = path.rpartition(".")[0]
        if path and (parent, path) not in listed:
            yield f"{path!r} is declared and is no child of {parent!r}"


def _observation_problems(graph: RunCounts) -> Iterator[str]:
    """The observations of a module are distinct and cover each of its calls once.

    Without columns they may cover fewer: older scripts kept the first call alone, or missed keyword arguments.
    """
    for name, metadata in (("input_metadata", graph.input_metadata), ("output_metadata", graph.output_metadata)):
        for path, observations in metadata.items():
            calls = sum(observation.calls for observation in observations)
            known = graph.call_counts.get(path, 0)
            if calls != known and (calls > known or graph.calls is not None):
                yield f"{name}[{path!r}] covers {calls} calls of {known}"
            if any(observation.calls < 1 for observation in observations):
                yield f"{name}[{path!r}] has an observation without a call"
            if len(_as_counts(observations)) < len(observations):
                yield f"{name}[{path!r}] has the same tensors twice"


def _event_problems(graph: RunCounts) -> Iterator[str]:
    """Enter and exit events pair up and show the same calls and edges."""
    if not graph.events:
        return
    entered: Counter[str] = Counter()
    edges: Counter[str] = Counter()
    stack: list[str] = []
    for position, (event, path) in enumerate(graph.events):
        if event == "enter":
            entered[path] += 1
            if stack:
                edges[f"{stack[-1]}{aggregates.ARROW}{path}"] += 1
            stack.append(path)
        elif not stack or stack.pop() != path:
            yield f"events[{position}] leaves {path!r}, which is not the innermost open call"
            return
    if stack:
        yield f"events: the call of {stack[-1]!r} is never left"
    yield from _differences("events show calls", graph.call_counts, entered)
    yield from _differences("events show edges", graph.edges, edges)


def _coverage_problems(graph: RunCounts) -> Iterator[str]:
    """The ops run in modules are among those the tracer saw; the rest ran outside any."""
    if graph.coverage is None:
        return
    in_modules = sum(graph.op_call_counts.values())
    if in_modules > graph.coverage.ops:
        yield f"op_call_counts adds up to {in_modules} ops, the tracer saw {graph.coverage.ops}"
    if graph.ops is not None:
        seen, kinds = len(graph.ops.kind), len(set(graph.ops.kind))
        if (graph.coverage.ops, graph.coverage.op_kinds) != (seen, kinds):
            yield (
                f"coverage says {graph.coverage.ops} ops of {graph.coverage.op_kinds} kinds, "
                f"the columns hold {seen} of {kinds}"
            )


def _recount_problems(graph: RunCounts) -> Iterator[str]:
    """The contract keys are what the columns add up to; one that the file leaves out claims nothing."""
    calls, ops, paths, metas = graph.calls, graph.ops, graph.paths, graph.tensor_metas
    if calls is None:
        return
    yield from _differences("calls add up to call_counts", graph.call_counts, aggregates.count_calls(paths, calls))
    yield from _differences("calls add up to edges", graph.edges, aggregates.count_edges(paths, calls))
    if graph.root_calls:
        roots = aggregates.count_root_calls(paths, calls)
        yield from _differences("calls add up to root_calls", graph.root_calls, roots)
    if ops is not None and graph.op_call_counts:
        own = aggregates.count_own_ops(paths, calls, ops)
        yield from _differences("ops add up to op_call_counts", graph.op_call_counts, own)
    for name, written, counted in (
        ("input_metadata", graph.input_metadata, aggregates.count_inputs(paths, metas, calls)),
        ("output_metadata", graph.output_metadata, aggregates.count_outputs(paths, metas, calls)),
    ):
        for path in sorted(written.keys() | counted.keys()) if written else ():
            if _as_counts(written.get(path, ())) != counted.get(path, {}):
                yield f"{name}[{path!r}] differs from the tensors of the calls"


def _as_counts(observations: tuple[Observation, ...]) -> dict[object, int]:
    return {observation.tensors: observation.calls for observation in observations}


def _differences(claim: str, written: Mapping[str, int], counted: Mapping[str, int]) -> Iterator[str]:
    if written == counted:
        return
    for key in sorted(written.keys() | counted.keys()):
        if written.get(key) != counted.get(key):
            yield f"{claim}: {key!r} is {written.get(key, 'missing')} in the file, counted {counted.get(key, 'none')}"


def call_problems(graph: RunDetail) -> Iterator[str]:
    """Every impossibility in the columns of a graph; the columns must have matching lengths already."""
    if graph.calls is not None:
        walk = _CallWalk(graph.calls, graph.paths)
        impossible = walk.replay(op_count=len(graph.ops.kind) if graph.ops is not None else 0)
        if impossible is not None:
            yield impossible
        elif graph.ops is not None:
            yield from _op_call_problems(graph.ops.call, walk.call_of_op)
        if graph.calls.started_ns:
            yield from _clock_problems(graph.calls)
    if graph.storages is not None:
        for storage, (born, freed) in enumerate(zip(graph.storages.born_op, graph.storages.freed_op, strict=True)):
            if born > freed:
                yield f"storage {storage} is freed before op {freed} and born at op {born}"
        if graph.ops is not None:
            yield from _op_use_problems(graph, graph.ops, graph.storages)
        if graph.calls is not None:
            yield from _call_use_problems(graph.calls, graph.storages)


class _CallWalk:
    """Replays the calls in the order of entry; `call_of_op` becomes the innermost call around every op."""

    def __init__(self, calls: CallColumns, paths: tuple[str, ...]) -> None:
        self.call_of_op = array("q")
        self._calls = calls
        self._paths = paths
        self._open: list[int] = []

    def replay(self, op_count: int) -> str | None:
        """The first thing that cannot have happened, or None."""
        for call, parent in enumerate(self._calls.parent):
            problem = self._close_down_to(parent)
            if problem is None and parent >= 0 and not self._open:
                problem = f"{self._name(call)} was entered under call {parent}, which had already returned"
            if problem is None and not self._advance(self._calls.first_op[call]):
                problem = f"{self._name(call)} begins at op {self._calls.first_op[call]}, inside the call before it"
            if problem is not None:
                return problem
            self._open.append(call)
        problem = self._close_down_to(-1)
        if problem is None:
            self._advance(op_count)
        return problem

    def _close_down_to(self, parent: int) -> str | None:
        while self._open and self._open[-1] != parent:
            call = self._open[-1]
            if not self._advance(self._calls.end_op[call]):
                return f"{self._name(call)} ends at op {self._calls.end_op[call]}, before a call inside it does"
            self._open.pop()
        return None

    def _advance(self, clock: int) -> bool:
        passed = clock - len(self.call_of_op)
        if passed > 0:
            self.call_of_op.extend(array("q", [self._open[-1] if self._open else -1]) * passed)
        return passed >= 0

    def _name(self, call: int) -> str:
        return f"call {call} of {self._paths[self._calls.path[call]]!r}"


def _clock_problems(calls: CallColumns) -> Iterator[str]:
    """A call ends after it began, lies within its caller, and begins no earlier than the call before it."""
    started, ended = calls.started_ns, calls.ended_ns
    for call, parent in enumerate(calls.parent):
        if ended[call] < started[call]:
            yield f"call {call} ends {started[call] - ended[call]} ns before it begins"
        if call and started[call] < started[call - 1]:
            yield f"call {call} begins before call {call - 1}, which was entered first"
        if parent >= 0 and ended[call] > ended[parent]:
            yield f"call {call} ends {ended[call] - ended[parent]} ns after its caller, call {parent}"


def _op_call_problems(recorded: array[int], expected: array[int]) -> Iterator[str]:
    if recorded != expected:
        op = next(op for op, (given, wanted) in enumerate(zip(recorded, expected, strict=True)) if given != wanted)
        yield f"op {op} is said to run in call {recorded[op]}, the innermost call around it is {expected[op]}"


def _op_use_problems(graph: RunDetail, ops: OpColumns, storages: StorageColumns) -> Iterator[str]:
    for side, used, arity in (
        ("input", ops.input_storages, [len(kind.inputs) for kind in graph.op_kinds]),
        ("output", ops.output_storages, [len(kind.outputs) for kind in graph.op_kinds]),
    ):

        def op_of_use(arity: list[int] = arity) -> Iterator[int]:
            return chain.from_iterable(map(repeat, count(), map(arity.__getitem__, ops.kind)))

        for storage, op in _first_outside(used, storages, op_of_use, is_dead=le):
            yield f"op {op} has storage {storage} as {side}, {_life(storages, storage)}"


def _call_use_problems(calls: CallColumns, storages: StorageColumns) -> Iterator[str]:
    for side, used, counts, clocks in (
        ("input", calls.input_storages, calls.input_count, calls.first_op),
        ("output", calls.output_storages, calls.output_count, calls.end_op),
    ):

        def clock_of_use(counts: array[int] = counts, clocks: array[int] = clocks) -> Iterator[int]:
            return chain.from_iterable(map(repeat, clocks, counts))

        # A call begins and ends between two ops, so memory that is freed before the next op is still there.
        for storage, op in _first_outside(used, storages, clock_of_use, is_dead=lt):
            yield f"a call has storage {storage} as {side} at op {op}, {_life(storages, storage)}"


def _first_outside(
    used: array[int],
    storages: StorageColumns,
    clocks: Callable[[], Iterable[int]],
    *,
    is_dead: Callable[[int, int], bool],
) -> Iterator[tuple[int, int]]:
    """The first use of a storage before its birth, and the first after its death; C loops over millions of uses."""
    if any(map(gt, map(storages.born_op.__getitem__, used), clocks())):
        yield next((row, at) for row, at in zip(used, clocks(), strict=True) if storages.born_op[row] > at)
    if any(map(is_dead, map(storages.freed_op.__getitem__, used), clocks())):
        yield next((row, at) for row, at in zip(used, clocks(), strict=True) if is_dead(storages.freed_op[row], at))


def _life(storages: StorageColumns, storage: int) -> str:
    return f"which lives from op {storages.born_op[storage]} up to op {storages.freed_op[storage]}"


SCHEMA_VERSION = 1

StagePaths = tuple[str, tuple[str, ...]]  # stage name, the module paths it claims


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallGraph(RunCounts):
    """Everything one traced phase has to say. The root module has path "".

    The counts are the contract and are complete by themselves: a file may hold nothing else. The columns are the detail
    from which the builder counted them; with both present `problems` checks one by the other. Compared by identity, as
    op kinds are: two graphs say the same when their JSON documents are equal.
    """

    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    library_versions: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    workload: Mapping[str, Json] = field(default_factory=dict)
    deployment: Mapping[str, Json] = field(default_factory=dict)  # stored formats; empty: all in the traced types
    phase: str = ""
    tracer: str = ""
    stages: tuple[StagePaths, ...] = ()
    runtime: Mapping[str, Json] = field(default_factory=dict)
    oracle_answers: tuple[OracleAnswer, ...] = ()
    notes: tuple[str, ...] = ()
    content_digest: str | None = field(default=None, init=False, repr=False)  # `stored_findings`; `replace` drops it

    def problems(self) -> list[str]:
        """Every way in which the graph contradicts itself, one precise sentence each; empty when it is sound."""
        return problems_of(self)
