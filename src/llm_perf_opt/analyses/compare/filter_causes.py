"""One trace records a part of the modules: what it does not hold is no difference of the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.compare.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.compare.side import Side
from llm_perf_opt.core.module_selection import recorded_of, recorded_only
from llm_perf_opt.core.report import Level, Note


def filtered_trace(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """Claims what follows from the filter that a header states, and nothing else.

    A module that the filter leaves out has no calls there. One that is recorded has the nearest recorded module as its
    caller, and that module has the ops of those left out.
    """
    for filtered, other in (pair.sides, pair.sides[::-1]):
        recorded = recorded_of(filtered.graph)
        if recorded is None:
            continue
        absorbing = _absorbing(other, recorded)
        detail = str(recorded_only(filtered.graph.workload))
        for difference in differences:
            if _follows(difference, filtered, other, recorded, absorbing):
                yield Claim(difference=difference, detail=detail)


def filter_notes(pairs: Sequence[Pair]) -> Iterator[Note]:
    """A warning for each run that is not recorded whole."""
    for name, place in (("A", 0), ("B", 1)):
        found = dict.fromkeys(recorded_only(pair.sides[place].graph.workload) for pair in pairs)
        for asked in filter(None, found):
            yield Note(
                f"{name} is a filtered trace: it records {asked}, and calls of other modules are not in it.",
                Level.WARNING,
            )


def _follows(
    difference: Difference, filtered: Side, other: Side, recorded: frozenset[str], absorbing: set[str]
) -> bool:
    path = difference.path
    if path in (filtered.classes or {}) and path not in recorded:
        return filtered.calls.get(path, 0) == 0
    if difference.aspect is Aspect.EDGE:
        is_recorded = difference.caller is None or difference.caller in recorded
        passed_by = any(caller not in recorded for caller in other.callers.get(path, {}))
        return filtered.calls.get(path, 0) == other.calls.get(path, 0) and (not is_recorded or passed_by)
    return difference.aspect in COST_ASPECTS and path in absorbing


def _absorbing(side: Side, recorded: frozenset[str]) -> set[str]:
    """The recorded modules around those that ran here and are not recorded."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [path for path in side.calls if path not in recorded]
    while waiting:
        for caller in side.callers.get(waiting.pop(), {}):
            if caller in recorded:
                found.add(caller)
            elif caller not in seen:
                seen.add(caller)
                waiting.append(caller)
    return found
