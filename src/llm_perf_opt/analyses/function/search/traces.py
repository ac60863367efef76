"""The traces that a search for cells may make: graphs of one phase by point, within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_perf_opt.analyses.function.form import Point
from llm_perf_opt.analyses.function.program.alignment import Parting
from llm_perf_opt.analyses.function.program.program import NoRule
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import PerfOptError

FAILED = "failed"


class NoTracesLeft(Exception):
    """The budget of traces is spent."""


def _never(point: Point) -> bool:
    return False


@dataclass(eq=False, kw_only=True)
class Traces:
    """Graphs of one phase by point, and not more than the budget allows.

    One trace gives the graphs of all phases: a point that another phase asked for `is_traced` and costs nothing.
    A point whose trace fails has no program, for the reason that the error gives; others are not affected.
    """

    trace: Callable[[Point], CallGraph]
    budget: int
    is_traced: Callable[[Point], bool] = _never
    count: int = field(default=0, init=False)  # of the budget, spent
    _known: dict[tuple[tuple[str, int], ...], CallGraph | Parting] = field(default_factory=dict, init=False)

    def at(self, point: Point) -> CallGraph:
        """The graph of a point; `NoRule` where its trace failed."""
        key = tuple(sorted(point.items()))
        if key not in self._known:
            if not self.is_traced(point):
                if self.count >= self.budget:
                    raise NoTracesLeft
                self.count += 1
            try:
                self._known[key] = self.trace(point)
            except PerfOptError as error:
                self._known[key] = Parting(what=FAILED, op=None, text=f"the trace failed: {error.what} {error.why}")
        found = self._known[key]
        if isinstance(found, Parting):
            raise NoRule(found)
        return found

    @property
    def points(self) -> list[Point]:
        """The points that were asked for."""
        return [dict(key) for key in self._known]
