"""The recorded items laid along the traced launches, in order: an alignment of least cost, found by beam search.

The traced launches are one forward. The recording may hold several, so the end of the launches leads back to their
beginning. An item is the kernel of a launch, a helper beside it, or extra; a launch may have no kernel. The state of
the search is the last launch that is done. Of each state the cheapest way to it is kept, as a linked list of decisions.
States that are worse than the best by `MARGIN` are dropped, so that the work grows with the number of items and not
with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from llm_perf_opt.analyses.join import costs
from llm_perf_opt.analyses.join.costs import Evidence, Fit
from llm_perf_opt.analyses.join.sides import Item, Launch

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

    `matched` are the states of `done` whose last launch has its kernel, so that further helpers may follow.
    """

    def __init__(self, items: Sequence[Item], launches: Sequence[Launch]) -> None:
        self._items = items
        self._count = len(launches)
        self._kinds, self._kind_of = _distinct(launches)
        self._skip = [costs.skip_cost(launch) for launch in launches]
        total = list(accumulate(self._skip, initial=0.0))
        self._tail = [min(total[-1] - total[place + 1], costs.PARTIAL) for place in range(_BEFORE, self._count)]
        self._fits: dict[object, list[tuple[Fit | None, bool, bool]]] = {}

    def start(self) -> tuple[States, States, States]:
        """The recording may begin anywhere in a forward."""
        done: States = {_BEFORE: (0.0, None, 0)}
        before = 0.0
        for place, skip in enumerate(self._skip):
            before += skip
            done[place] = (min(before, costs.PARTIAL), None, 0)
        return done, {}, {}

    def finish(self, done: States) -> State:
        """The cheapest state, what is missing of the last forward included."""
        ends = ((cost + self._tail[place + 1], place) for place, (cost, _, _) in done.items())
        cost, place = min(ends)
        return cost, done[place][1], done[place][2]

    def advance(self, number: int, done: States, begun: States, matched: States) -> tuple[States, States, States]:
        item = self._items[number]
        fits, extra = self._fits_of(item), costs.extra_cost(item)
        new_matched = {place: (cost + extra, way, forward) for place, (cost, way, forward) in matched.items()}
        new_begun = {place: (cost + extra, way, forward) for place, (cost, way, forward) in begun.items()}
        new_done = {place: (cost + extra, way, forward) for place, (cost, way, forward) in done.items()}
        for place, state in (*((place + 1, state) for place, state in done.items()), *begun.items()):
            if place < self._count:
                fit, helps, _ = fits[self._kind_of[place]]
                if fit is not None:
                    _keep(new_matched, place, _decided(state, number, place, fit[0]))
                if helps:
                    _keep(new_begun, place, _decided(state, number, place, costs.AS_HELPER))
        for place, state in matched.items():
            if fits[self._kind_of[place]][1]:
                _keep(new_matched, place, _decided(state, number, place, costs.AS_FOLLOWER))
        self._fuse(number, new_matched, fits)
        margin = costs.FIRST_MARGIN if number < costs.FIRST_ITEMS else costs.MARGIN
        return self._settled(new_done, new_begun, new_matched, margin)

    def _fuse(self, number: int, matched: States, fits: Sequence[tuple[Fit | None, bool, bool]]) -> None:
        """A fused kernel goes on to the launches behind the one that it was matched with."""
        open_places = sorted(place for place, (_, way, _) in matched.items() if way is not None and way[1] == number)
        while open_places:
            reached: list[int] = []
            for place in open_places:
                after = place + 1
                if after >= self._count or not fits[self._kind_of[after]][2]:
                    continue
                cost, way, forward = matched[place]
                assert way is not None
                longer: State = (cost + costs.FUSED, (way[0], number, way[2], after, forward), forward)
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
        wrapped = min(ends, key=lambda state: state[0], default=None)
        if wrapped is not None:
            _keep(done, _BEFORE, wrapped)
        self._leave_out(done, limit)
        return _within(done, limit), _within(begun, limit), _within(matched, limit)

    def _leave_out(self, done: States, limit: float) -> None:
        for place in sorted(done):
            state = done[place]
            after = place + 1
            while after < self._count:
                cost = state[0] + self._skip[after]
                if cost > limit or (after in done and done[after][0] <= cost):
                    break
                state = done[after] = (cost, state[1], state[2])
                after += 1

    def _fits_of(self, item: Item) -> list[tuple[Fit | None, bool, bool]]:
        """Per distinct launch: the fit as its own kernel, whether as a helper, and whether as a part of a fused run."""
        key = (item.meanings, item.seen)
        if key not in self._fits:
            self._fits[key] = [
                (costs.fit(item, kind), costs.helps(item, kind), costs.fuses(item, kind)) for kind in self._kinds
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
        key = (launch.names, launch.words, launch.sizes)
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(launch)
        kind_of.append(numbers[key])
    return kinds, kind_of
