"""How long the innermost loop of an elementwise op is when its operands have different shapes."""

from __future__ import annotations

from collections.abc import Sequence


def inner_length(result: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """How many values at the end of the result every operand either holds one after the other or repeats one for.

    Kernels run through that many values at once and start anew after them. Operands are taken as contiguous.
    """
    padded = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in operands]
    length, steps = 1, None  # per operand: whether it moves on along the dimensions taken so far
    for dim in range(len(result) - 1, -1, -1):
        if result[dim] == 1:
            continue
        moves = [shape[dim] != 1 for shape in padded]
        if steps is not None and steps != moves:
            break
        length, steps = length * result[dim], moves
    return length
