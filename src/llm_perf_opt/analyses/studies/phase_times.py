"""The time of one traced phase on many devices: what does not depend on the device is worked out once.

`predict` follows every weight through the graph before it times a kernel; for a study the first part is the same for
all devices of a format, and takes most of the time. The figures are those of `predict`, to the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from llm_perf_opt.analyses.time.datasheet_rates import DataSheetRates, Execution
from llm_perf_opt.analyses.time.predict import StageTime, stage_time
from llm_perf_opt.analyses.time.rank_bound import least_exchanges
from llm_perf_opt.analyses.time.rates import Pieces, RateSource
from llm_perf_opt.analyses.time.stage_work import StageWork, stage_works
from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.collectives import Collective


@dataclass(frozen=True)
class TimedPhase:
    """A phase that is timed on several devices."""

    graph: CallGraph

    @cached_property
    def _works(self) -> tuple[StageWork, ...]:
        return stage_works(self.graph)

    @cached_property
    def _exchanges(self) -> Mapping[str, Mapping[Collective, int]]:
        return least_exchanges(self.graph)

    @cached_property
    def _known(self) -> dict[Execution, Mapping[str, Pieces]]:
        return {}

    def _pieces(self, rates: RateSource) -> Mapping[str, Pieces]:
        """Of a data sheet the kernels depend on who launches them alone; other sources are asked each time."""
        if not isinstance(rates, DataSheetRates):
            return rates.pieces(self.graph, self._works)
        if rates.execution not in self._known:
            self._known[rates.execution] = rates.pieces(self.graph, self._works)
        return self._known[rates.execution]

    def predict(self, rates: RateSource) -> tuple[StageTime, ...]:
        """Every stage in which something runs that takes time, in order."""
        pieces, expected = self._pieces(rates), rates.expected_s(self.graph, self._works)
        least = {} if rates.cluster is None else self._exchanges
        return tuple(
            stage_time(work, pieces[work.name], rates, least.get(work.name), expected.get(work.name))
            for work in self._works
            if pieces[work.name]
        )
