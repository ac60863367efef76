"""Two tracers saw different things in one run: tables, containers, direct forwards, lists of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.analyses.compare.difference import ALL, COST_ASPECTS, Aspect, Claim, Difference, Observed, Pair
from llm_perf_opt.analyses.compare.side import NO_OPS, Side, Tensor, Tensors

_WITHOUT_FORWARD = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_BLIND_TO = {
    Aspect.MODULE: "the module tree",
    Aspect.WEIGHTS: "weights",
    Aspect.INPUTS: "input tensors",
    Aspect.OUTPUTS: "output tensors",
}


def tracer_cannot_see_ops(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One side has no ops, or does not know what they cost: FLOPs and bytes are unknown there, not zero."""
    for difference in differences:
        if difference.path == ALL and difference.aspect is Aspect.OPS:
            blind = _blind_side(pair, difference)
            detail = "counted, their cost unknown" if blind.op_counts else "none seen"
            yield Claim(difference=difference, detail=f"{detail}, by the tracer {blind.graph.tracer!r}")


def tracer_cannot_see(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Another whole table is missing on one side."""
    for difference in differences:
        if difference.path == ALL:
            tracer = _blind_side(pair, difference).graph.tracer
            yield Claim(difference=difference, detail=f"{_BLIND_TO[difference.aspect]}, by the tracer {tracer!r}")


def _blind_side(pair: Pair, difference: Difference) -> Side:
    return pair.left if difference.left == "unknown" else pair.right


def container(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """A class that has no forward cannot have run: one side lists it because of its children.

    What its children lose in edges from the container they gain in edges from the container's own caller.
    """
    for difference in differences:
        for listing in pair.sides:
            if _is_listed_container(listing, difference.path) and difference.aspect in {Aspect.CALLS, Aspect.EDGE}:
                yield Claim(difference=difference, detail=_class_of(listing, difference.path))
            elif difference.aspect is Aspect.EDGE and _came_through_container(listing, difference):
                yield Claim(difference=difference, detail="its children have another caller")


def _class_of(side: Side, path: str) -> str:
    return (side.classes or {}).get(path, "")


def _is_listed_container(side: Side, path: str) -> bool:
    return _class_of(side, path) in _WITHOUT_FORWARD and side.calls.get(path, 0) > 0


def _came_through_container(side: Side, difference: Difference) -> bool:
    """On this side the module was called by a container, which the edge leads from or passes by."""
    through = [caller for caller in side.callers.get(difference.path, {}) if _is_listed_container(side, caller)]
    past = {grand for caller in through for grand in side.callers.get(caller, {})}
    return difference.caller in {*through, *past}


_OF_TENSORS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})


def order_of_tensors(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The same tensors in every call, in another order."""
    return _alike(pair, differences, _sorted, "the same tensors")


def tensor_listed_once(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One tracer lists a tensor that a call takes twice once; nothing is there that the other has not."""
    return _alike(pair, differences, _distinct, "the same distinct tensors")


def written_through_a_view(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One tracer knows a tensor by the op that wrote into it last, on a view without its dimensions of size one."""
    return _alike(pair, differences, _squeezed, "the same but for dimensions of size one")


def _alike(
    pair: Pair, differences: Sequence[Difference], canonical: Callable[[Tensors], Tensors], detail: str
) -> Iterator[Claim]:
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    for difference in differences:
        if difference.aspect in _OF_TENSORS:
            left, right = (_counted(observed, canonical) for observed in difference.observed)
            if left == right:
                yield Claim(difference=difference, detail=detail)


def _counted(observed: Observed, canonical: Callable[[Tensors], Tensors]) -> dict[Tensors, int]:
    found: dict[Tensors, int] = {}
    for tensors, calls in observed:
        key = canonical(tensors)
        found[key] = found.get(key, 0) + calls
    return found


def _sorted(tensors: Tensors) -> Tensors:
    return tuple(sorted(tensors))


def _distinct(tensors: Tensors) -> Tensors:
    return tuple(sorted(set(tensors)))


def _squeezed(tensors: Tensors) -> Tensors:
    return tuple(sorted((tuple(size for size in shape if size != 1), dtype) for shape, dtype in tensors))


def unseen_direct_forward(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """`child.forward(...)` fires no hook, so one tracer takes the child's work for its caller's.

    Proved when the tracers differ, the child is there on both sides, its caller was called equally often, and the work
    is found with that caller: whatever the child calls is called as often by it, or the ops of the child are its ops.
    """
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    for seeing, blind in (pair.sides, pair.sides[::-1]):
        passed_over = _PassedOver(seeing, blind)
        for difference in differences:
            if passed_over.concerns(difference):
                yield Claim(difference=difference, detail=f"by the tracer {blind.graph.tracer!r}")


class _PassedOver:
    """Modules that one side saw run and the other took for a part of their caller."""

    def __init__(self, seeing: Side, blind: Side) -> None:
        self._seeing = seeing
        self._blind = blind
        known = blind.classes or {}
        self._unseen = {path for path in seeing.calls if not blind.calls.get(path) and path in known}
        self._proved: set[str] = set()
        # Inner modules first, so that a module may rest on what was proved of its children.
        for path in sorted(self._unseen, key=lambda path: path.count("."), reverse=True):
            if self._is_proved(path):
                self._proved.add(path)

    def concerns(self, difference: Difference) -> bool:
        path = difference.path
        if difference.aspect is Aspect.CALLS:
            return path in self._proved
        if difference.aspect is Aspect.EDGE:
            through = self._proved & self._seeing.callers.get(path, {}).keys()
            return difference.caller in through | {self._seen_caller(passed) for passed in through}
        return difference.aspect in COST_ASPECTS and self._took_over(path, self._proved)

    def _is_proved(self, path: str) -> bool:
        caller = self._seen_caller(path)
        if caller is None or self._seeing.calls[caller] != self._blind.calls.get(caller):
            return False
        children = self._seeing.callees.get(path, [])
        if not children:
            has_ops = bool((self._seeing.own_ops or {}).get(path, NO_OPS).names)
            return has_ops and self._took_over(caller, self._unseen)
        return all(child in self._proved or self._was_called_by(caller, child) for child in children)

    def _was_called_by(self, caller: str, child: str) -> bool:
        blind = self._blind
        return self._seeing.calls[child] == blind.calls.get(child) and caller in blind.callers.get(child, {})

    def _seen_caller(self, path: str) -> str | None:
        """The nearest caller that the blind side saw; None where there are several ways up, or a circle."""
        passed: set[str] = set()
        while path in self._unseen:
            callers = list(self._seeing.callers.get(path, {}))
            if len(callers) != 1 or path in passed:
                return None
            passed.add(path)
            path = callers[0]
        return path

    def _took_over(self, path: str, absorbed: set[str]) -> bool:
        """The blind side's ops of the module are the seeing side's, plus those of the children it took over."""
        children = [child for child in self._seeing.callees.get(path, []) if child in absorbed]
        if not children or self._seeing.own_ops is None or self._blind.own_ops is None:
            return False
        together: Counter[str] = Counter()
        for part in (path, *children):
            together.update(dict(self._seeing.own_ops.get(part, NO_OPS).names))
        return together == Counter(dict(self._blind.own_ops.get(path, NO_OPS).names))


Accept = Callable[[Tensors, Tensors], bool]  # (what one side has more, what both have) -> whether that is explained


def weights_listed(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Different tracers; what one lists more has the shapes and dtypes of weights of the model."""
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    known = {tensor for side in pair.sides for tensor in _all_weights(side)}
    yield from _claims(differences, lambda more, _: known.issuperset(more), "one side lists weights")


def _all_weights(side: Side) -> Iterator[Tensor]:
    for own in (side.weights or {}).values():
        yield from (tensor for _, tensor in own)


def cache_objects(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Without tensors that look like a cache, both sides saw the same in as many calls.

    A cache looks like pairs of tensors of one type that agree in every dimension but at most one, its length; or, the
    state of a recurrent layer, like pairs with the batch in front. Whole numbers in it, as its length, may come along.
    """
    yield from _claims(differences, _is_cache, "one side lists the tensors of a cache")


def _claims(differences: Sequence[Difference], accept: Accept, detail: str) -> Iterator[Claim]:
    for difference in differences:
        if difference.aspect in _OF_TENSORS:
            left, right = difference.observed
            if _agree_without(left, right, accept) or _agree_without(right, left, accept):
                yield Claim(difference=difference, detail=detail)


def _agree_without(listing: Observed, other: Observed, accept: Accept) -> bool:
    """Every call of the listing side is one of the other side, but for tensors that are accepted as more."""
    waiting = dict(other)
    for tensors, calls in listing:
        match = next((bare for bare in waiting if waiting[bare] and _is_explained(tensors, bare, accept)), None)
        if match is None or waiting[match] < calls:
            return False
        waiting[match] -= calls
    return not any(waiting.values())


def _is_explained(tensors: Tensors, bare: Tensors, accept: Accept) -> bool:
    if tensors == bare:
        return True
    more = Counter(tensors)
    more.subtract(bare)
    if min(more.values()) < 0:
        return False
    surplus = tuple(more.elements())
    return bool(surplus) and accept(surplus, bare)


def _is_cache(more: Tensors, bare: Tensors) -> bool:
    state = [(shape, dtype) for shape, dtype in more if shape or not dtype.startswith("int")]
    if not state:
        return True
    ranks = {len(shape) for shape, _ in state}
    if len(state) % 2 or len({dtype for _, dtype in state}) > 1 or min(ranks) < 3:
        return False
    shapes = {shape for shape, _ in state}
    grows_one_way = len(ranks) == 1 and sum(len(set(sizes)) > 1 for sizes in zip(*shapes, strict=True)) <= 1
    return grows_one_way or (bool(bare) and {shape[:1] for shape in shapes} == {bare[0][0][:1]})
