"""Which colour a name has in the charts of one report: a stage has the one it has in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from llm_perf_opt.document import Report
from llm_perf_opt.reports.stage_colours import stage_colours

HUES = 7  # colours of the palette; beyond that they come round again


@dataclass(frozen=True, slots=True)
class Hues:
    """Stage -> its number in the palette."""

    stages: dict[str, int] = field(default_factory=dict)

    def know(self, names: Sequence[str]) -> bool:
        """Whether they are stages: at least half of them stand in the graph, and there are colours for all."""
        distinct = set(names)
        return 0 < len(distinct) <= HUES and 2 * len(distinct & self.stages.keys()) >= len(distinct)

    def of(self, names: Sequence[str]) -> list[int]:
        """One number each: stages have theirs and other names one that is free; without stages they count up."""
        known = {name: self.stages[name] for name in names if name in self.stages} if self.know(names) else {}
        free = cycle([number for number in range(HUES) if number not in known.values()] or range(HUES))
        numbers = {name: known[name] if name in known else next(free) for name in dict.fromkeys(names)}
        return [numbers[name] for name in names]


def hues_of(report: Report) -> Hues:
    """From the first graph in the report or its chapters; without one every chart counts for itself."""
    if report.graph is not None:
        return Hues({stage: number % HUES for number, stage in enumerate(stage_colours(report.graph))})
    return next((hues for hues in map(hues_of, report.chapters) if hues.stages), Hues())
