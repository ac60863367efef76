"""A child whose `forward` is called directly, which a tracer that relies on hooks does not see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES
from llm_perf_opt.analyses.comparison.difference import COST_ASPECTS, Aspect, Claim, Difference, Pair
from llm_perf_opt.analyses.comparison.side import NO_OPS, Side


@CAUSES.add("unseen direct forward")
def unseen_direct_forward(pair: Pair, differences: Sequence[Difference]) -> Iterator[Claim]:
    """`child.forward(...)` fires no hook, so one tracer takes the child's work for its caller's.

    Proved when the tracers differ, the child is there on both sides, its caller was called equally often, and the work
    is found with that caller: whatever the child calls is called as often by it, or the ops of the child are its ops.
    """
    if pair.left.graph.tracer == pair.right.graph.tracer:
        return
    for seeing, blind in (pair.sides, pair.sides[::-1]):
        passed_over = _PassedOver(seeing, blind)
        for difference in differences:
            if passed_over.concerns(difference):
                yield Claim(difference=difference, detail=f"by the tracer {blind.graph.tracer!r}")


class _PassedOver:
    """Modules that one side saw run and the other took for a part of their caller."""

    def __init__(self, seeing: Side, blind: Side) -> None:
        self._seeing = seeing
        self._blind = blind
        known = blind.classes or {}
        self._unseen = {path for path in seeing.calls if not blind.calls.get(path) and path in known}
        self._proved: set[str] = set()
        # Inner modules first, so that a module may rest on what was proved of its children.
        for path in sorted(self._unseen, key=lambda path: path.count("."), reverse=True):
            if self._is_proved(path):
                self._proved.add(path)

    def concerns(self, difference: Difference) -> bool:
        path = difference.path
        if difference.aspect is Aspect.CALLS:
            return path in self._proved
        if difference.aspect is Aspect.EDGE:
            through = self._proved & self._seeing.callers.get(path, {}).keys()
            return difference.caller in through | {self._seen_caller(passed) for passed in through}
        return difference.aspect in COST_ASPECTS and self._took_over(path, self._proved)

    def _is_proved(self, path: str) -> bool:
        caller = self._seen_caller(path)
        if caller is None or self._seeing.calls[caller] != self._blind.calls.get(caller):
            return False
        children = self._seeing.callees.get(path, [])
        if not children:
            has_ops = bool((self._seeing.own_ops or {}).get(path, NO_OPS).names)
            return has_ops and self._took_over(caller, self._unseen)
        return all(child in self._proved or self._was_called_by(caller, child) for child in children)

    def _was_called_by(self, caller: str, child: str) -> bool:
        blind = self._blind
        return self._seeing.calls[child] == blind.calls.get(child) and caller in blind.callers.get(child, {})

    def _seen_caller(self, path: str) -> str | None:
        """The nearest caller that the blind side saw; None where there are several ways up, or a circle."""
        passed: set[str] = set()
        while path in self._unseen:
            callers = list(self._seeing.callers.get(path, {}))
            if len(callers) != 1 or path in passed:
                return None
            passed.add(path)
            path = callers[0]
        return path

    def _took_over(self, path: str, absorbed: set[str]) -> bool:
        """The blind side's ops of the module are the seeing side's, plus those of the children it took over."""
        children = [child for child in self._seeing.callees.get(path, []) if child in absorbed]
        if not children or self._seeing.own_ops is None or self._blind.own_ops is None:
            return False
        together: Counter[str] = Counter()
        for part in (path, *children):
            together.update(dict(self._seeing.own_ops.get(part, NO_OPS).names))
        return together == Counter(dict(self._blind.own_ops.get(path, NO_OPS).names))
