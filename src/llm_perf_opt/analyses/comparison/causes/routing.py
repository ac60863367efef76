"""A router sent the same rows to other experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.comparison.experts import (
    expert_places,
    rows_of_siblings,
    rows_of_uses,
    rows_scale,
    uses_together_agree,
)

_DETAIL = "the rows of all experts together agree"


@CAUSES.add("routing")
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
