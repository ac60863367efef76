"""The same model ran for longer, or not to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.comparison.side import Side

_COUNTED = frozenset({Aspect.CALLS, Aspect.EDGE})
_TENSOR_ASPECTS = frozenset({Aspect.INPUTS, Aspect.OUTPUTS})


@CAUSES.add("partial run")
def partial_run(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """One run stopped half-way: it has fewer calls than the other, and no outputs of the calls that were open."""
    stopped = [side for side in pair.sides if side.graph.stopped_in is not None]
    if len(stopped) != 1:
        return
    detail = f"it stopped in {stopped[0].graph.stopped_in or '(root)'}"
    for difference in differences:
        if difference.aspect in _COUNTED:
            left, right = difference.counts
            is_short = left < right if stopped[0] is pair.left else right < left
        else:
            is_short = difference.aspect in _TENSOR_ASPECTS
        if is_short:
            yield Claim(difference=difference, detail=detail)


@CAUSES.add("decode length")
def decode_length(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """A decode of more steps calls everything in proportion; tensors that only the longer run saw belong to it too."""
    left_steps, right_steps = map(decode_steps, pair.sides)
    if not left_steps or not right_steps or left_steps == right_steps:
        return
    detail = f"{left_steps} -> {right_steps} steps"
    for difference in differences:
        if difference.aspect in _COUNTED:
            left, right = difference.counts
            in_proportion = left * right_steps == right * left_steps
        elif difference.aspect in _TENSOR_ASPECTS:
            shorter, longer = difference.observed if left_steps < right_steps else difference.observed[::-1]
            in_proportion = dict(shorter).keys() <= dict(longer).keys()
        else:
            continue
        if in_proportion:
            yield Claim(difference=difference, detail=detail)


def decode_steps(side: Side) -> int:
    """Steps of the decode that this trace is about; 0 where it is about something else."""
    steps = side.graph.runtime.get("decode_steps", 0)
    return steps if isinstance(steps, int) else 0
