"""Every fact that two traces do not share, each listed once.

What follows from another difference by itself is left out: the calls inside a module that was not called, the edges of
a module whose number of calls differs, the modules inside one that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_perf_opt.analyses.compare.difference import ALL, Aspect, Difference, Pair
from llm_perf_opt.analyses.compare.side import NO_OPS, OwnOps, Side, Tensors


def find_differences(pair: Pair) -> list[Difference]:
    """Differences in the order of the modules; identical traces have none."""
    return [
        *_modules(pair),
        *_classes(pair),
        *_weights(pair),
        *_calls(pair),
        *_edges(pair),
        *_tensors(pair, Aspect.INPUTS, pair.left.inputs, pair.right.inputs),
        *_tensors(pair, Aspect.OUTPUTS, pair.left.outputs, pair.right.outputs),
        *_costs(pair),
    ]


def _unseen(aspect: Aspect, left: object, right: object) -> Iterator[Difference]:
    """One side has the whole table and the other has none."""
    if (left is None) != (right is None):
        words = ["unknown" if table is None else "known" for table in (left, right)]
        yield Difference(aspect=aspect, path=ALL, left=words[0], right=words[1])


def _modules(pair: Pair) -> Iterator[Difference]:
    left, right = pair.left.classes, pair.right.classes
    if left is None or right is None:
        yield from _unseen(Aspect.MODULE, left, right)
        return
    for path in {**left, **right}:
        if (path in left) != (path in right) and not _parent_is_missing(path, left if path in right else right):
            yield Difference(aspect=Aspect.MODULE, path=path, left=left.get(path), right=right.get(path))


def _parent_is_missing(path: str, other: Mapping[str, str]) -> bool:
    return path != "" and path.rpartition(".")[0] not in other


def _classes(pair: Pair) -> Iterator[Difference]:
    left, right = pair.left.classes or {}, pair.right.classes or {}
    for path, name in left.items():
        if right.get(path, name) != name:
            yield Difference(aspect=Aspect.CLASS, path=path, left=name, right=right[path])


def _weights(pair: Pair) -> Iterator[Difference]:
    left, right = pair.left.weights, pair.right.weights
    if left is None or right is None:
        yield from _unseen(Aspect.WEIGHTS, left, right)
        return
    for path in {**left, **right}:
        mine, theirs = left.get(path, ()), right.get(path, ())
        if mine != theirs and _is_on_both_sides(pair, path):
            yield Difference(aspect=Aspect.WEIGHTS, path=path, left=mine, right=theirs)


def _is_on_both_sides(pair: Pair, path: str) -> bool:
    return all(side.classes is None or path in side.classes for side in pair.sides)


def _calls(pair: Pair) -> Iterator[Difference]:
    left, right = pair.left, pair.right
    for path in {**left.calls, **right.calls}:
        mine, theirs = left.calls.get(path, 0), right.calls.get(path, 0)
        if mine == theirs or not _is_on_both_sides(pair, path):
            continue
        if (not theirs and _follows(left, right, path)) or (not mine and _follows(right, left, path)):
            continue
        yield Difference(aspect=Aspect.CALLS, path=path, left=mine, right=theirs)


def _follows(seen: Side, other: Side, path: str) -> bool:
    """Nobody who calls the module here is called over there, so that its not being called is no news."""
    callers = seen.callers.get(path, {})
    return bool(callers) and not any(other.calls.get(caller) for caller in callers)


def _edges(pair: Pair) -> Iterator[Difference]:
    """Who called a module, where that is more than how often it was called."""
    for path in {**pair.left.callers, **pair.right.callers}:
        left, right = pair.left.callers.get(path, {}), pair.right.callers.get(path, {})
        if left == right or not (pair.left.calls.get(path) and pair.right.calls.get(path)):
            continue
        if len(left) == len(right) == 1 and left.keys() == right.keys():
            continue
        for caller in {**left, **right}:
            mine, theirs = left.get(caller, 0), right.get(caller, 0)
            if mine != theirs:
                yield Difference(aspect=Aspect.EDGE, path=path, caller=caller, left=mine, right=theirs)


def _tensors(
    pair: Pair,
    aspect: Aspect,
    left: Mapping[str, Mapping[Tensors, int]] | None,
    right: Mapping[str, Mapping[Tensors, int]] | None,
) -> Iterator[Difference]:
    """Modules called on both sides; where the number of calls differs, only which tensors occur at all is compared."""
    if left is None or right is None:
        yield from _unseen(aspect, left, right)
        return
    for path in {**left, **right}:
        mine, theirs = left.get(path, {}), right.get(path, {})
        calls = pair.left.calls.get(path, 0), pair.right.calls.get(path, 0)
        if 0 in calls:
            continue
        if mine != theirs if calls[0] == calls[1] else mine.keys() != theirs.keys():
            yield Difference(
                aspect=aspect, path=path, left=tuple(sorted(mine.items())), right=tuple(sorted(theirs.items()))
            )


def _costs(pair: Pair) -> Iterator[Difference]:
    left, right = pair.left.own_ops, pair.right.own_ops
    if left is None and right is None:
        yield from _op_counts(pair)
        return
    if left is None or right is None:
        yield from _unseen(Aspect.OPS, left, right)
        return
    for path in {**left, **right}:
        mine, theirs = left.get(path, NO_OPS), right.get(path, NO_OPS)
        if mine != theirs:
            yield Difference(aspect=_cost_aspect(mine, theirs), path=path, left=mine, right=theirs)


def _op_counts(pair: Pair) -> Iterator[Difference]:
    """Two tracers that count ops without knowing what they cost."""
    left, right = pair.left.op_counts, pair.right.op_counts
    if left is None or right is None:
        yield from _unseen(Aspect.OPS, left, right)
        return
    for path in {**left, **right}:
        mine, theirs = left.get(path, 0), right.get(path, 0)
        if mine != theirs:
            yield Difference(aspect=Aspect.OPS, path=path, left=mine, right=theirs)


def _cost_aspect(left: OwnOps, right: OwnOps) -> Aspect:
    if left.names != right.names:
        return Aspect.OPS
    return Aspect.FLOPS if left.flops != right.flops else Aspect.BYTES
