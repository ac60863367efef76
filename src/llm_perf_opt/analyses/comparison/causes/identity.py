"""The two traces are of different things: another model, another phase, or other library versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair

_OF_CODE = COST_ASPECTS | {Aspect.MODULE, Aspect.CLASS, Aspect.WEIGHTS}


@CAUSES.add("another model")
def another_model(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The headers name two models, so nothing need agree."""
    yield from _claim_all(pair, differences, "model")


@CAUSES.add("another phase")
def another_phase(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """The headers name two phases of a model, which run different parts of it."""
    yield from _claim_all(pair, differences, "phase")


def _claim_all(pair: Pair, differences: Sequence[Difference], field: str) -> Iterator[Claim]:
    changed = pair.contradicting_fields()
    if field in changed:
        left, right = changed[field]
        yield from (Claim(difference=difference, detail=f"{left} -> {right}") for difference in differences)


@CAUSES.add("library version")
def library_version(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Other library code may build other modules and run other ops.

    It is not taken as a reason for other calls or shapes of modules that both sides have: those remain unexplained.
    """
    changed = pair.contradicting_fields("library.")
    told = ", ".join(f"{name} {left} -> {right}" for name, (left, right) in changed.items())
    if told:
        yield from (Claim(difference=found, detail=told) for found in differences if found.aspect in _OF_CODE)
