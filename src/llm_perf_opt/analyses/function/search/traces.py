"""The traces that a search for cells may make: graphs of one phase by point, within a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llm_perf_opt.analyses.function.form import Point
from llm_perf_opt.core.callgraph.graph import CallGraph


class NoTracesLeft(Exception):
    """The budget of traces is spent."""


def _never(point: Point) -> bool:
    return False


@dataclass(eq=False, kw_only=True)
class Traces:
    """Graphs of one phase by point, and not more than the budget allows.

    One trace gives the graphs of all phases: a point that another phase asked for `is_traced` and costs nothing.
    """

    trace: Callable[[Point], CallGraph]
    budget: int
    is_traced: Callable[[Point], bool] = _never
    count: int = field(default=0, init=False)  # of the budget, spent
    _known: dict[tuple[tuple[str, int], ...], CallGraph] = field(default_factory=dict, init=False)

    def at(self, point: Point) -> CallGraph:
        """The graph of a point."""
        key = tuple(sorted(point.items()))
        if key not in self._known:
            if not self.is_traced(point):
                if self.count >= self.budget:
                    raise NoTracesLeft
                self.count += 1
            self._known[key] = self.trace(point)
        return self._known[key]

    @property
    def points(self) -> list[Point]:
        """The points that were asked for."""
        return [dict(key) for key in self._known]
