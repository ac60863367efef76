"""Each piece of recorded work with the ops, the module and the evidence it was given by; nothing is guessed.

Work that no traced op explains, between two ops of one module, is that module's: the recorded library runs an op there
that the traced one does not. That holds for a few small kernels where both runs agree before and after: a product or
attention without an op stays unattributed, and so does everything in a place where the two runs differ much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.analyses.join import costs
from llm_perf_opt.analyses.join.align import Alignment, Match, align
from llm_perf_opt.analyses.join.costs import Evidence
from llm_perf_opt.analyses.join.sides import Item, Launch, recorded_items, traced_launches
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.recordings.recording import DeviceWork, Recording
from llm_perf_opt.ops.kernel_names import kernel_meaning

_MOST_BETWEEN = 4  # kernels between two matched ones that their place may explain
_MOST_LEFT_OUT = 4.0  # cost of the traced launches left out there: two or three small ops, no product
ENOUGH = 0.95  # attributed by op: then the traced code is the code that ran, and no other reading is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedWork:
    """One kernel, copy or fill. `ops` are rows of the graph, several of a fused kernel; none: given by its place.

    `call` is the module call it belongs to, or -1. `evidence` of None: it could not be attributed. `launched_by` is the
    op of the host and its shapes, of work without an op of the trace; None: not recorded.
    """

    name: str
    label: str  # what its name says; "unknown" where no rule knows it
    duration_ns: int
    forward: int  # from 0; of unattributed work that of the work before it
    ops: tuple[int, ...] = ()
    is_fused: bool = False  # it does what several launches of the traced code do
    call: int = -1
    evidence: Evidence | None = None
    launched_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRecording:
    """All work in order. `merges_products`: products that read one tensor were taken as one, as engines do them."""

    work: tuple[JoinedWork, ...]
    forwards: int
    merges_products: bool
    launches: int  # that one traced forward makes


def join_recording(recording: Recording, graph: CallGraph) -> JoinedRecording:
    """Lay the recording along the traced ops, as they are written; if that fits badly, with merged products too."""
    items = recorded_items(recording)
    launches = traced_launches(graph)
    if not launches:
        raise PerfOptError(
            "The trace launches no kernel.",
            why="its ops are views, or its tracer sees no ops with results",
            fix="trace the model with the weightless tracer",
        )
    found = align(items, launches)
    written = _joined(recording, graph, items, launches, found, merges_products=False)
    if by_op_ns(written.work) >= ENOUGH * recording.device_ns:
        return written
    merged = traced_launches(graph, merges_products=True)
    other = align(items, merged)
    if len(merged) == len(launches) or other.cost >= found.cost:
        return written
    return _joined(recording, graph, items, merged, other, merges_products=True)


def by_op_ns(work: Sequence[JoinedWork]) -> int:
    """The time of work that was given to ops."""
    return sum(one.duration_ns for one in work if one.ops)


def _joined(
    recording: Recording,
    graph: CallGraph,
    items: Sequence[Item],
    launches: Sequence[Launch],
    found: Alignment,
    *,
    merges_products: bool,
) -> JoinedRecording:
    op_calls = ops_of(graph).call
    by_item = {match.item: match for match in found.matches}
    places = _places(graph, items, launches, found.matches)
    work: list[JoinedWork] = []
    forward = 0
    for number, item in enumerate(items):
        match = by_item.get(number)
        ops: tuple[int, ...] = ()
        call, evidence = places.get(number, -1), Evidence.PLACE if number in places else None
        if match is not None:
            ops = tuple(dict.fromkeys(op for place in match.launches for op in launches[place].ops))
            call, evidence, forward = op_calls[ops[0]], match.evidence, match.forward
        for row in item.work:
            one = recording.work[row]
            meaning = kernel_meaning(one.name)
            work.append(
                JoinedWork(
                    name=one.name,
                    label="unknown" if meaning is None else meaning.label,
                    duration_ns=one.duration_ns,
                    forward=forward,
                    ops=ops,
                    is_fused=match is not None and len(match.launches) > 1,
                    call=call,
                    evidence=evidence,
                    launched_by=None if ops else _host_op(recording, one),
                )
            )
    return JoinedRecording(
        work=tuple(work), forwards=found.forwards, merges_products=merges_products, launches=len(launches)
    )


def _host_op(recording: Recording, work: DeviceWork) -> str | None:
    """The outermost op with shapes that launched the work: `aten::linear 1x141x512 30522x512`."""
    chain = recording.chain_of(work)
    if not chain:
        return None
    op = next((op for op in chain if op.input_shapes), chain[0])
    return " ".join((op.name, *("x".join(map(str, shape)) for shape in op.input_shapes or ())))


def _places(
    graph: CallGraph, items: Sequence[Item], launches: Sequence[Launch], matches: Sequence[Match]
) -> dict[int, int]:
    """Item without an op -> the innermost module call around both of its neighbours, unless that is the whole model."""
    places: dict[int, int] = {}
    calls, op_calls = calls_of(graph), ops_of(graph).call
    for before, after in pairwise(matches):
        between = range(before.item + 1, after.item)
        left_out = launches[before.launches[-1] + 1 : after.launches[0]]
        if (
            not 0 < len(between) <= _MOST_BETWEEN
            or before.forward != after.forward
            or sum(map(costs.skip_cost, left_out)) > _MOST_LEFT_OUT
            or any(costs.is_heavy(items[item]) for item in between)
        ):
            continue
        last, first = launches[before.launches[-1]].ops[-1], launches[after.launches[0]].ops[0]
        around = set(_outwards(calls.parent, op_calls[last]))
        shared = next((call for call in _outwards(calls.parent, op_calls[first]) if call in around), -1)
        if shared >= 0 and calls.parent[shared] >= 0:
            places.update(dict.fromkeys(between, shared))
    return places


def _outwards(parents: Sequence[int], call: int) -> Iterator[int]:
    while call >= 0:
        yield call
        call = parents[call]
