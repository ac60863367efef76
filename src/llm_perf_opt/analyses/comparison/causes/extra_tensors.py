"""One tracer lists tensors that the other does not: weights handed to a module, or those inside a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import Aspect, Claim, Difference, Observed, Pair
from llm_perf_opt.analyses.comparison.side import Side, Tensor, Tensors

_OF_TENSORS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})

Accept = Callable[[Tensors, Tensors], bool]  # (what one side has more, what both have) -> whether that is explained


@CAUSES.add("weights listed as inputs")
def weights_listed(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Different tracers; what one lists more has the shapes and dtypes of weights of the model."""
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    known = {tensor for side in pair.sides for tensor in _all_weights(side)}
    yield from _claims(differences, lambda more, _: known.issuperset(more), "one side lists weights")


def _all_weights(side: Side) -> Iterator[Tensor]:
    for own in (side.weights or {}).values():
        yield from (tensor for _, tensor in own)


@CAUSES.add("cache objects")
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
