"""Two traces become findings: every difference with its cause, or none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.causes import Explanation
from llm_perf_opt.analyses.compare.causes import explained
from llm_perf_opt.analyses.compare.difference import ALL, COST_ASPECTS, Aspect, Difference, Finding, Pair
from llm_perf_opt.analyses.compare.find_differences import find_differences
from llm_perf_opt.analyses.compare.side import OUTSIDE, Side
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two traces of one phase and what they do not share."""

    pair: Pair
    findings: tuple[Finding, ...]

    @property
    def phase(self) -> str:
        """The phase, or both where they differ."""
        left, right = (side.graph.phase for side in self.pair.sides)
        return left if left == right else f"{left}/{right}"

    @property
    def unexplained(self) -> tuple[Finding, ...]:
        """The findings without a cause."""
        return tuple(finding for finding in self.findings if finding.cause is None)


def compare(left: CallGraph, right: CallGraph) -> Comparison:
    """Every difference between two traces, with the cause that can be proved from them.

    A module's cost follows from its calls and tensors, so where these differ the difference in cost has their cause.
    """
    pair = Pair(left=Side(left), right=Side(right))
    differences = find_differences(pair)
    explanations: dict[Difference, Explanation | None] = {}
    explanations.update(explained(pair, [difference for difference in differences if not _is_cost(difference)]))
    followed = _Followed(pair, differences, explanations)
    open_costs = []
    for difference in filter(_is_cost, differences):
        origin = followed.origin(difference)
        if origin is None:
            open_costs.append(difference)
        else:
            explanations[difference] = followed.by_path[origin]
    explanations.update(explained(pair, open_costs))
    findings = (Finding(difference=found, explanation=explanations.get(found)) for found in differences)
    return Comparison(pair=pair, findings=tuple(findings))


def _is_cost(difference: Difference) -> bool:
    return difference.aspect in COST_ASPECTS


class _Followed:
    """Which difference in calls or tensors a difference in cost follows from, and what explains that one."""

    def __init__(
        self, pair: Pair, differences: Sequence[Difference], explanations: Mapping[Difference, Explanation | None]
    ) -> None:
        self._pair = pair
        self.by_path: dict[str, Explanation | None] = {}
        for difference in differences:
            if not _is_cost(difference) and difference.aspect is not Aspect.EDGE and difference.path != ALL:
                explanation = explanations.get(difference)
                if explanation is None or difference.path not in self.by_path:  # one open question keeps it open
                    self.by_path[difference.path] = explanation

    def origin(self, cost: Difference) -> str | None:
        """The module whose difference it follows from; None where calls and tensors agree."""
        path: str | None = "" if cost.path == OUTSIDE else cost.path  # what runs around the model serves its calls
        passed: set[str] = set()
        while path is not None and path not in passed:  # modules may call themselves, or each other
            if path in self.by_path:
                return path
            passed.add(path)
            path = self._absent_caller(path)
        return None

    def _absent_caller(self, path: str) -> str | None:
        """Up to where a module that one side never called would have been called from."""
        for side, other in (self._pair.sides, self._pair.sides[::-1]):
            if side.calls.get(path) and not other.calls.get(path):
                return next(iter(side.callers.get(path, {})), path.rpartition(".")[0] if path else None)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LonePhase:
    """A phase that only one run has; `cause` is None unless the other run's workload leaves it out."""

    phase: str
    side: str
    cause: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Pairs of traces, in the order of the left run, and the phases without a partner."""

    pairs: tuple[tuple[CallGraph, CallGraph], ...]
    lone: tuple[LonePhase, ...]


def match_phases(left: Sequence[CallGraph], right: Sequence[CallGraph], wanted: Collection[str] = ()) -> Matched:
    """Match two runs phase by phase; one trace on each side is a pair even if their phases differ."""
    if len(left) == len(right) == 1 and not wanted:
        return Matched(pairs=((left[0], right[0]),), lone=())
    mine, theirs = ({graph.phase: graph for graph in graphs} for graphs in (left, right))
    _require_phases(wanted, {**mine, **theirs})
    phases = [phase for phase in {**mine, **theirs} if not wanted or phase in wanted]
    lone = [
        LonePhase(phase=phase, side=side, cause=_cause(phase, here, other))
        for side, here, other in (("A", mine, theirs), ("B", theirs, mine))
        for phase in phases
        if phase in here and phase not in other
    ]
    pairs = tuple((mine[phase], theirs[phase]) for phase in phases if phase in mine and phase in theirs)
    if not pairs:
        raise UsageError(
            "The two runs have no phase in common.",
            why=f"A has {', '.join(mine)}; B has {', '.join(theirs)}",
            fix="name two files to compare traces of different phases",
        )
    return Matched(pairs=pairs, lone=tuple(lone))


def _cause(phase: str, here: Mapping[str, CallGraph], other: Mapping[str, CallGraph]) -> str | None:
    steps = here[phase].runtime.get("decode_steps")
    asked = {graph.workload.get("decode_steps") for graph in other.values()}
    return "decode length" if steps and asked == {0} else None


def _require_phases(wanted: Collection[str], known: Collection[str]) -> None:
    for phase in wanted:
        if phase not in known:
            raise UsageError(
                f"Neither run has a phase {phase!r}.",
                why=f"phases there: {', '.join(known)}",
                fix="name one of these, or leave --phase out",
            )
