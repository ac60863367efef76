"""Each piece of recorded work with the ops, the module and the evidence it was given by; nothing is guessed.

Work that no traced op explains, between two ops of one module, is that module's: the recorded library runs an op there
that the traced one does not. That holds for a few small kernels where both runs agree before and after: a matmul or
attention without an op stays unattributed, and so does everything in a place where the two runs differ much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import calls_of, ops_of
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.recordings.recording import DeviceWork, Recording
from llm_perf_opt.measurements.join import sides
from llm_perf_opt.measurements.join.sides import Evidence, Fit, Item, Launch, recorded_items, traced_launches
from llm_perf_opt.ops.kernel_names import kernel_meaning

_MOST_BETWEEN = 4  # kernels between two matched ones that their place may explain
_MOST_LEFT_OUT = 4.0  # cost of the traced launches left out there: two or three small ops, no matmul
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
    forward: int  # from 0; of unattributed work the forward of the work before it
    ops: tuple[int, ...] = ()
    is_fused: bool = False  # it does what several launches of the traced code do
    call: int = -1
    evidence: Evidence | None = None
    launched_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRecording:
    """All work in order. `merges_matmuls`: matmuls that read one tensor were taken as one, as engines do them."""

    work: tuple[JoinedWork, ...]
    forwards: int
    merges_matmuls: bool
    launches: int  # that one traced forward makes


def join_recording(recording: Recording, graph: CallGraph) -> JoinedRecording:
    """Lay the recording along the traced ops, as they are written; if that fits badly, with merged matmuls too."""
    items = recorded_items(recording)
    has_shapes = any(op.input_shapes is not None for op in recording.ops)
    launches = traced_launches(graph, has_shapes=has_shapes)
    if not launches:
        raise PerfOptError(
            "The trace launches no kernel.",
            why="its ops are views, or its tracer sees no ops with results",
            fix="trace the model with the weightless tracer",
        )
    alignment = align(items, launches)
    written = _joined(recording, graph, items, launches, alignment, merges_matmuls=False)
    if by_op_ns(written.work) >= ENOUGH * recording.device_ns:
        return written
    merged = traced_launches(graph, merges_matmuls=True, has_shapes=has_shapes)
    other = align(items, merged)
    if len(merged) == len(launches) or other.cost >= alignment.cost:
        return written
    return _joined(recording, graph, items, merged, other, merges_matmuls=True)


def by_op_ns(work: Sequence[JoinedWork]) -> int:
    """The time of work that was given to ops."""
    return sum(item.duration_ns for item in work if item.ops)


def _joined(
    recording: Recording,
    graph: CallGraph,
    items: Sequence[Item],
    launches: Sequence[Launch],
    alignment: Alignment,
    *,
    merges_matmuls: bool,
) -> JoinedRecording:
    op_calls = ops_of(graph).call
    by_item = {match.item: match for match in alignment.matches}
    places = _places(graph, items, launches, alignment.matches)
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
            kernel = recording.work[row]
            meaning = kernel_meaning(kernel.name)
            work.append(
                JoinedWork(
                    name=kernel.name,
                    label="unknown" if meaning is None else meaning.label,
                    duration_ns=kernel.duration_ns,
                    forward=forward,
                    ops=ops,
                    is_fused=match is not None and len(match.launches) > 1,
                    call=call,
                    evidence=evidence,
                    launched_by=None if ops else _host_op(recording, kernel),
                )
            )
    return JoinedRecording(
        work=tuple(work), forwards=alignment.forwards, merges_matmuls=merges_matmuls, launches=len(launches)
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
            or sum(map(sides.skip_cost, left_out)) > _MOST_LEFT_OUT
            or any(sides.is_heavy(items[item]) for item in between)
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


# The recorded items laid along the traced launches, in order: an alignment of least cost, found by beam search.
#
# The traced launches are one forward. The recording may hold several, so the end of the launches leads back to their
# beginning. An item is the kernel of a launch, a helper next to it, or extra; a launch may have no kernel. The state of
# the search is the last launch that is done. Of each state the cheapest way to it is kept, as a linked list of
# decisions. States that are worse than the best by `MARGIN` are dropped, so that the work grows with the number of
# items and not with its square.

Way = tuple["Way | None", int, int, int, int]  # before; item; first and last launch that it does; forward
State = tuple[float, "Way | None", int]  # cost, decisions, forward
States = dict[int, State]
_BEFORE = -1  # no launch is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An item and the launches it does: one, or several of a fused kernel."""

    item: int
    launches: range
    forward: int  # from 0
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The matches in order, and what the alignment cost."""

    matches: tuple[Match, ...]
    forwards: int
    cost: float


def align(items: Sequence[Item], launches: Sequence[Launch]) -> Alignment:
    """The cheapest way to lay the items along the launches."""
    search = _Search(items, launches)
    done, begun, _ = search.start()
    matched: States = {}
    for number in range(len(items)):
        done, begun, matched = search.advance(number, done, begun, matched)
    cost, way, forward = search.finish(done)
    return Alignment(matches=tuple(search.matches(way)), forwards=forward + 1 if launches else 0, cost=cost)


class _Search:
    """`done`: launches up to here are done or left out. `begun`: helpers of this launch ran, its own kernel did not.

    `matched` are the states of `done` in which the last launch has its kernel, so that further helpers may follow.
    """

    def __init__(self, items: Sequence[Item], launches: Sequence[Launch]) -> None:
        self._items = items
        self._count = len(launches)
        self._kinds, self._kind_of = _distinct(launches)
        self._skip = [sides.skip_cost(launch) for launch in launches]
        total = list(accumulate(self._skip, initial=0.0))
        self._tail = [min(total[-1] - total[place + 1], sides.PARTIAL) for place in range(_BEFORE, self._count)]
        self._fits: dict[object, list[tuple[Fit | None, bool, bool]]] = {}

    def start(self) -> tuple[States, States, States]:
        """The recording may begin anywhere in a forward."""
        done: States = {_BEFORE: (0.0, None, 0)}
        before = 0.0
        for place, skip in enumerate(self._skip):
            before += skip
            done[place] = (min(before, sides.PARTIAL), None, 0)
        return done, {}, {}

    def finish(self, done: States) -> State:
        """The cheapest state, what is missing of the last forward included."""
        ends = ((cost + self._tail[place + 1], place) for place, (cost, _, _) in done.items())
        cost, place = min(ends)
        return cost, done[place][1], done[place][2]

    def advance(self, number: int, done: States, begun: States, matched: States) -> tuple[States, States, States]:
        item = self._items[number]
        fits, extra = self._fits_of(item), sides.extra_cost(item)
        new_matched = {place: (cost + extra, way, forward) for place, (cost, way, forward) in matched.items()}
        new_begun = {place: (cost + extra, way, forward) for place, (cost, way, forward) in begun.items()}
        new_done = {place: (cost + extra, way, forward) for place, (cost, way, forward) in done.items()}
        for place, state in (*((place + 1, state) for place, state in done.items()), *begun.items()):
            if place < self._count:
                fit, helps, _ = fits[self._kind_of[place]]
                if fit is not None:
                    _keep(new_matched, place, _decided(state, number, place, fit[0]))
                if helps:  # the launch stays open: its own kernel is still to come
                    _keep(new_begun, place, _decided(state, number, place, sides.AS_HELPER))
        for place, state in matched.items():
            if fits[self._kind_of[place]][1]:
                _keep(new_matched, place, _decided(state, number, place, sides.AS_FOLLOWER))
        self._fuse(number, new_matched, fits)
        margin = sides.FIRST_MARGIN if number < sides.FIRST_ITEMS else sides.MARGIN
        return self._settled(new_done, new_begun, new_matched, margin)

    def _fuse(self, number: int, matched: States, fits: Sequence[tuple[Fit | None, bool, bool]]) -> None:
        """A fused kernel goes on to the launches behind the one that it was matched with."""
        # Only launches that this very item was matched with can go on: an earlier item has ended.
        open_places = sorted(place for place, (_, way, _) in matched.items() if way is not None and way[1] == number)
        while open_places:
            reached: list[int] = []
            for place in open_places:
                after = place + 1
                if after >= self._count or not fits[self._kind_of[after]][2]:
                    continue
                cost, way, forward = matched[place]
                assert way is not None
                longer: State = (cost + sides.FUSED, (way[0], number, way[2], after, forward), forward)
                if after not in matched or longer[0] < matched[after][0]:
                    matched[after] = longer
                    reached.append(after)
            open_places = reached

    def _settled(self, done: States, begun: States, matched: States, margin: float) -> tuple[States, States, States]:
        """States behind launches that are left out, the next forward, and no state that is much worse than the best."""
        for place, state in matched.items():
            _keep(done, place, state)
        best = min(cost for states in (done, begun) for cost, _, _ in states.values())
        limit = best + margin
        ends = (
            (cost + self._tail[place + 1], way, forward + 1)
            for place, (cost, way, forward) in done.items()
            if place != _BEFORE and cost + self._tail[place + 1] <= limit
        )
        # The end of a forward leads back to its beginning, with what is left out of it paid.
        wrapped = min(ends, key=lambda state: state[0], default=None)
        if wrapped is not None:
            _keep(done, _BEFORE, wrapped)
        self._leave_out(done, limit)
        kept = _within(done, limit) or self._abandoned(begun)
        return kept, _within(begun, limit), _within(matched, limit)

    def _abandoned(self, begun: States) -> States:
        """The best launch of which only helpers ran, as left out: many helpers in a row may leave no other state."""
        place = min(begun, key=lambda place: begun[place][0])
        cost, way, forward = begun[place]
        return {place: (cost + self._skip[place], way, forward)}

    def _leave_out(self, done: States, limit: float) -> None:
        for place in sorted(done):
            state = done[place]
            after = place + 1
            while after < self._count:
                cost = state[0] + self._skip[after]
                if cost > limit or (after in done and done[after][0] <= cost):
                    break  # the cheaper way leaves out what follows by itself
                state = done[after] = (cost, state[1], state[2])
                after += 1

    def _fits_of(self, item: Item) -> list[tuple[Fit | None, bool, bool]]:
        """Per distinct launch: the fit as its own kernel, whether as a helper, and whether as a part of a fused run."""
        key = (item.meanings, item.seen)  # thousands of items share a few dozen of these
        if key not in self._fits:
            self._fits[key] = [
                (sides.fit(item, kind), sides.helps(item, kind), sides.fuses(item, kind)) for kind in self._kinds
            ]
        return self._fits[key]

    def matches(self, way: Way | None) -> Iterator[Match]:
        """The decisions from the first to the last."""
        decided: list[Way] = []
        while way is not None:
            decided.append(way)
            way = way[0]
        for _, number, first, last, forward in reversed(decided):
            fit = self._fits_of(self._items[number])[self._kind_of[first]][0]
            evidence = Evidence.KERNEL_NAME if fit is None else fit[1]
            yield Match(item=number, launches=range(first, last + 1), forward=forward, evidence=evidence)


def _decided(state: State, item: int, place: int, cost: float) -> State:
    return state[0] + cost, (state[1], item, place, place, state[2]), state[2]


def _within(states: States, limit: float) -> States:
    return {place: state for place, state in states.items() if state[0] <= limit}


def _keep(states: States, place: int, state: State) -> None:
    if place not in states or state[0] < states[place][0]:
        states[place] = state


def _distinct(launches: Sequence[Launch]) -> tuple[list[Launch], list[int]]:
    """Launches that differ in what they match, and the number of each launch among them."""
    numbers: dict[object, int] = {}
    kinds: list[Launch] = []
    kind_of: list[int] = []
    for launch in launches:
        key = (launch.names, launch.words, launch.sizes, launch.is_routed)
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(launch)
        kind_of.append(numbers[key])
    return kinds, kind_of
