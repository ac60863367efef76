"""Two tracers list the tensors of one call in different ways. Two runs of one tracer never do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import Aspect, Claim, Difference, Observed, Pair
from llm_perf_opt.analyses.comparison.side import Tensors

_OF_TENSORS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})


@CAUSES.add("order of tensors")
def order_of_tensors(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The same tensors in every call, in another order."""
    return _alike(pair, differences, _sorted, "the same tensors")


@CAUSES.add("tensor listed once")
def tensor_listed_once(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One tracer lists a tensor that a call takes twice once; nothing is there that the other has not."""
    return _alike(pair, differences, _distinct, "the same distinct tensors")


@CAUSES.add("written through a view")
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
