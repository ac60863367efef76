"""`einsum`, priced step by step in the order in which torch contracts its operands.

A step that sums over an index both operands carry is a matrix product. One that sums over nothing is an elementwise
multiplication, and an index that only one operand carries is added up before the product: both are vector work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out

Sizes = dict[str, int]  # size of each index that one operand carries


def einsum(kind: OpKind) -> OpCost | None:
    """The sum of the pairwise steps; None where the equation was not recorded.

    The bytes are those of the operands and the result: what lies between two steps is not in the shapes.
    """
    equation = kind.arguments.get("equation")
    if not isinstance(equation, str):
        return None
    terms, result = _terms(equation.replace(" ", ""), [len(meta.shape) for meta in kind.inputs])
    pending = [_sizes(term, meta.shape) for term, meta in zip(terms, kind.inputs, strict=True)]
    cost = OpCost(bytes_moved=bytes_in_and_out(kind))
    for first, second in _steps(len(pending), kind.arguments.get("path")):
        left, right = pending[first], pending[second]
        pending = [sizes for place, sizes in enumerate(pending) if place not in (first, second)]
        needed = set(result).union(*pending)
        merged, step = _pair(left, right, needed)
        pending.append(merged)
        cost += step
    return cost + _sum_alone(pending[0], set(result))


def _pair(left: Sizes, right: Sizes, needed: set[str]) -> tuple[Sizes, OpCost]:
    """One contraction of two operands; `needed` are the indices that later steps or the result still carry."""
    left, left_sum = _summed_early(left, right, needed)
    right, right_sum = _summed_early(right, left, needed)
    union = {index: max(left.get(index, 1), right.get(index, 1)) for index in left | right}
    summed = [index for index in union if index not in needed and union[index] > 1]
    merged = {index: size for index, size in union.items() if index in needed}
    steps = math.prod(union.values())
    product = OpCost(flops=2 * steps) if summed else OpCost(vector_flops=steps)
    return merged, product + left_sum + right_sum


def _summed_early(own: Sizes, other: Sizes, needed: set[str]) -> tuple[Sizes, OpCost]:
    """`own` without the indices that no other operand carries, and the additions that removed them."""
    alone = {index for index, size in own.items() if index not in needed and size > 1 and other.get(index, 1) == 1}
    if not alone:
        return own, OpCost()
    kept = {index: size for index, size in own.items() if index not in alone}
    return kept, OpCost(vector_flops=math.prod(own.values()))


def _sum_alone(own: Sizes, needed: set[str]) -> OpCost:
    """The additions left over when a single operand carries more indices than the result."""
    return _summed_early(own, {}, needed)[1]


def _steps(operand_count: int, path: list[int] | None) -> Iterator[tuple[int, int]]:
    """Places of the two operands of each step; their result is appended. Without a path, from left to right."""
    if path:
        yield from zip(path[::2], path[1::2], strict=True)
    elif operand_count > 1:
        yield 0, 1
        for remaining in range(operand_count - 2, 0, -1):
            yield remaining, 0  # the running result was appended last, the next operand stands first


def _terms(equation: str, dimensions: list[int]) -> tuple[list[list[str]], list[str]]:
    """The indices of every operand and of the result, an ellipsis spelled out as numbered indices."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    widths = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, dimensions, strict=True)
    ]
    widest = max(widths, default=0)
    spelled = [_spell(term, width, widest) for term, width in zip(terms, widths, strict=True)]
    if arrow:
        return spelled, _spell(right, widest, widest)
    counts = Counter(index for term in spelled for index in term)
    batch = [str(place) for place in range(widest)]
    return spelled, batch + sorted(index for index, count in counts.items() if count == 1 and index not in batch)


def _spell(term: str, width: int, widest: int) -> list[str]:
    """The indices of one term; an ellipsis of `width` dimensions takes the last of the `widest` numbered ones."""
    before, ellipsis, after = term.partition("...")
    middle = [str(place) for place in range(widest - width, widest)] if ellipsis else []
    return [*before, *middle, *after]


def _sizes(term: list[str], shape: tuple[int, ...]) -> Sizes:
    """Index sizes of one operand; an index given twice is its diagonal."""
    return dict(zip(term, shape, strict=True))
