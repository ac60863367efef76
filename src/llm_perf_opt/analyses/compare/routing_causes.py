"""A router sent the same rows to other experts; experts are found by structure.

Either numbered siblings of one class (`experts.0`, `expert_0`), or one module that its caller calls several times per
call (the activation inside a loop over fused experts).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from llm_perf_opt.analyses.compare.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.compare.side import Side, Tensor, Tensors
from llm_perf_opt.analyses.path_labels import numbered_name

Rows = Mapping[tuple[int, tuple[int, ...], str], int]  # (position, last dimension, dtype) -> rows
Shapes = dict[int, Counter[Tensor]]  # position among the tensors -> tensor -> calls
Seen = Mapping[str, Mapping[Tensors, int]]

_MOST_LEVELS = 6  # how far above a module its loop is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """Rows in and out of all experts together, and how often the module that divides them was called."""

    inputs: Rows
    outputs: Rows
    caller_calls: int


def rows_scale(left: ExpertRows, right: ExpertRows, left_scale: int, right_scale: int) -> bool:
    """Whether rows are to each other as the two scales are, for every kind of tensor in and out."""
    return bool(left.inputs) and all(
        {kind: count * right_scale for kind, count in mine.items()}
        == {kind: count * left_scale for kind, count in theirs.items()}
        for mine, theirs in ((left.inputs, right.inputs), (left.outputs, right.outputs))
    )


def expert_places(path: str) -> Iterator[tuple[str, str]]:
    """Every way to read a path as (family of siblings, what is inside the member), the deepest family first."""
    parts = path.split(".")
    for position in range(len(parts) - 1, -1, -1):
        if (prefix := numbered_name(parts[position])) is not None:
            yield ".".join((*parts[:position], prefix)), ".".join(parts[position + 1 :])


def rows_of_siblings(pair: Pair, family: str, inside: str) -> tuple[ExpertRows, ExpertRows] | None:
    """Rows of numbered siblings on both sides; None unless at least one of them got another share.

    The layers of a chain are numbered siblings too, but each of them gets the same share on both sides.
    """
    members = pair.left.members.get(family, [])
    if len(members) < 2 or members != pair.right.members.get(family, []):
        return None
    if len({(side.classes or {}).get(member) for side in pair.sides for member in members}) != 1:
        return None
    callers = [{caller for member in members for caller in side.callers.get(member, {})} for side in pair.sides]
    if callers[0] != callers[1] or len(callers[0]) != 1:
        return None
    paths = [f"{member}.{inside}" if inside else member for member in members]
    return _expert_rows(pair, paths, callers[0].pop()) if _shares_moved(pair, paths) else None


def rows_of_uses(pair: Pair, path: str) -> tuple[ExpertRows, ExpertRows] | None:
    """Rows of all calls of one module, where it or a module around it is called several times by one caller's call."""
    used = path
    for _ in range(_MOST_LEVELS):
        callers = [side.callers.get(used, {}) for side in pair.sides]
        if len(callers[0]) != 1 or callers[0].keys() != callers[1].keys():
            return None
        caller = next(iter(callers[0]))
        if any(side.calls[used] > side.calls[caller] for side in pair.sides):
            return _expert_rows(pair, [path], caller)
        used = caller
    return None


def uses_together_agree(pair: Pair, path: str) -> bool:
    """Several modules share the uses: experts proper, and those that pass rows on untouched. All their rows agree."""
    callers = {caller for side in pair.sides for caller in side.callers.get(path, {})}
    if len(callers) != 1:
        return False
    caller = callers.pop()
    left_calls, right_calls = (side.calls.get(caller, 0) for side in pair.sides)
    shared = {
        child
        for side in pair.sides
        for child in side.callees.get(caller, [])
        if side.calls[child] > side.calls[caller] and side.callers[child].keys() == {caller}
    }
    left, right = (sum(_first_rows(side, child) for child in shared) for side in pair.sides)
    return path in shared and 0 < left * right_calls == right * left_calls


def _first_rows(side: Side, path: str) -> int:
    return _rows(_shapes(side.inputs or {}, [path]).get(0, Counter()))


def _shares_moved(pair: Pair, paths: Sequence[str]) -> bool:
    mine, theirs = ([_total_rows(side, path) for path in paths] for side in pair.sides)
    return any(left * sum(theirs) != right * sum(mine) for left, right in zip(mine, theirs, strict=True))


def _total_rows(side: Side, path: str) -> int:
    shapes = _shapes(side.inputs or {}, [path])
    return sum(_rows(tensors) for tensors in shapes.values())


def _expert_rows(pair: Pair, paths: Sequence[str], caller: str) -> tuple[ExpertRows, ExpertRows] | None:
    if any(side.inputs is None or side.outputs is None for side in pair.sides):
        return None
    inputs = _rows_by_kind(*(_shapes(side.inputs or {}, paths) for side in pair.sides))
    outputs = _rows_by_kind(*(_shapes(side.outputs or {}, paths) for side in pair.sides))
    left, right = (
        ExpertRows(inputs=inputs[side], outputs=outputs[side], caller_calls=pair.sides[side].calls[caller])
        for side in (0, 1)
    )
    return left, right


def _shapes(seen: Seen, paths: Sequence[str]) -> Shapes:
    shapes: Shapes = {}
    for path in paths:
        for tensors, calls in seen.get(path, {}).items():
            for position, tensor in enumerate(tensors):
                shapes.setdefault(position, Counter())[tensor] += calls
    return shapes


def _rows_by_kind(left: Shapes, right: Shapes) -> tuple[Rows, Rows]:
    """Rows by position; a tensor that is the same in every call, as weights are, is left out if others vary."""
    positions = left.keys() | right.keys()
    varying = {position for position in positions if len({*left.get(position, ()), *right.get(position, ())}) > 1}
    mine, theirs = (
        _count_rows({position: shapes[position] for position in (varying or positions) if position in shapes})
        for shapes in (left, right)
    )
    return mine, theirs


def _count_rows(shapes: Shapes) -> Rows:
    rows: Counter[tuple[int, tuple[int, ...], str]] = Counter()
    for position, tensors in shapes.items():
        for (shape, dtype), calls in tensors.items():
            rows[position, shape[-1:], dtype] += calls * math.prod(shape[:-1])
    return rows


def _rows(tensors: Counter[Tensor]) -> int:
    return sum(calls * math.prod(shape[:-1]) for (shape, _), calls in tensors.items())


_DETAIL = "the rows of all experts together agree"


def routing(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Calls and shapes inside experts whose rows add up to the same per call of the module that divides them.

    That module's own ops too, where they differ by what it does once per expert.
    """

    @cache
    def siblings_agree(family: str, inside: str) -> bool:
        rows = rows_of_siblings(pair, family, inside)
        return rows is not None and rows_scale(*rows, rows[0].caller_calls, rows[1].caller_calls)

    @cache
    def is_rerouted(path: str) -> bool:
        if any(siblings_agree(*place) for place in expert_places(path)):
            return True
        rows = rows_of_uses(pair, path)
        if rows is not None and rows_scale(*rows, rows[0].caller_calls, rows[1].caller_calls):
            return True
        return uses_together_agree(pair, path)

    for difference in differences:
        divides = difference.aspect in COST_ASPECTS and _divides_rows(pair, difference, is_rerouted)
        if divides or is_rerouted(difference.path):
            yield Claim(difference=difference, detail=_DETAIL)


def _divides_rows(pair: Pair, difference: Difference, is_rerouted: Callable[[str], bool]) -> bool:
    """The module calls experts one by one, and its ops differ by a multiple of how many more calls it made."""
    if difference.flops_change != 0:
        return False
    called = {child for side in pair.sides for child in side.callees.get(difference.path, [])}
    experts = [child for child in called if is_rerouted(child)]
    if not experts or difference.aspect is not Aspect.OPS:
        return bool(experts)
    left, right = (sum(side.calls.get(expert, 0) for expert in experts) for side in pair.sides)
    return left != right and _is_multiple(difference.more_ops, right - left)


def _is_multiple(more_ops: Mapping[str, int], more_calls: int) -> bool:
    return bool(more_ops) and all(count % more_calls == 0 and count // more_calls >= 0 for count in more_ops.values())
