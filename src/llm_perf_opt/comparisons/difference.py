"""What differs between two traces, one fact at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from llm_perf_opt.comparisons.side import NO_OPS, OwnOps, Side, Tensor, Tensors
from llm_perf_opt.costs.reconcile import Explained

ALL = "(all modules)"  # where a whole table is missing on one side

Observed = tuple[tuple[Tensors, int], ...]
Weights = tuple[tuple[str, Tensor], ...]
Value = str | int | Observed | Weights | OwnOps | None  # None: not there, or not known


class Aspect(StrEnum):
    """What was looked at. The three of cost are one fact per module: the first of them that differs."""

    MODULE = "module"  # its being there at all
    CLASS = "class"
    WEIGHTS = "weights"
    CALLS = "calls"
    EDGE = "caller"
    INPUTS = "inputs"
    OUTPUTS = "outputs"
    OPS = "ops"
    FLOPS = "FLOPs"
    BYTES = "bytes"


COST_ASPECTS = frozenset({Aspect.OPS, Aspect.FLOPS, Aspect.BYTES})
TENSOR_ASPECTS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})
CALL_ASPECTS = frozenset({Aspect.CALLS, Aspect.EDGE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact that the two sides do not share. `caller` is set for edges alone."""

    aspect: Aspect
    path: str
    left: Value
    right: Value
    caller: str | None = None

    @property
    def observed(self) -> tuple[Observed, Observed]:
        """Both sides, where this is about tensors that went in or came out."""
        assert self.aspect in {Aspect.INPUTS, Aspect.OUTPUTS}
        return cast("Observed", self.left), cast("Observed", self.right)

    @property
    def counts(self) -> tuple[int, int]:
        """Both sides, where this is about how often."""
        assert self.aspect in {Aspect.CALLS, Aspect.EDGE}
        return cast("int", self.left), cast("int", self.right)

    @property
    def more_ops(self) -> Counter[str]:
        """Op -> how often it ran more on the right, where this is about ops and both sides know their names."""
        more: Counter[str] = Counter()
        if isinstance(self.left, OwnOps) and isinstance(self.right, OwnOps):
            more.update(dict(self.right.names))
            more.subtract(dict(self.left.names))
        return more

    @property
    def flops_change(self) -> int:
        """What the right side has more, of the ops run directly in the module; 0 unless this is about cost."""
        return _flops(self.right) - _flops(self.left)

    @property
    def bytes_change(self) -> int:
        """As `flops_change`, in bytes moved."""
        return _bytes(self.right) - _bytes(self.left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A cause's word for one difference; `detail` names what in the two traces proves it."""

    difference: Difference
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Explained):
    """A difference and what explains it."""

    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two sides of a comparison, as every cause gets them."""

    left: Side
    right: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both, left first."""
        return self.left, self.right

    def changed_fields(self) -> dict[str, tuple[object, object]]:
        """Header fields that differ; None where a side has no value."""
        left, right = self.left.header, self.right.header
        names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
        return {name: (left.get(name), right.get(name)) for name in names}

    def contradicting_fields(self, section: str = "") -> dict[str, tuple[object, object]]:
        """Header fields that both sides have, with different values; of one section (`workload.`) without its name."""
        return {
            name.removeprefix(section): values
            for name, values in self.changed_fields().items()
            if name.startswith(section) and not any(value is None or value == "" for value in values)
        }


def _flops(value: Value) -> int:
    return value.flops if isinstance(value, OwnOps) else 0


def _bytes(value: Value) -> int:
    return value.bytes_moved if isinstance(value, OwnOps) else 0


# Every fact that two traces do not share, each listed once.
#
# What follows from another difference by itself is left out: the calls inside a module that was not called, the edges
# of a module with another number of calls, the modules inside a module that is not there.


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
