"""What the adapter can tell by formula, without running anything."""

from __future__ import annotations

import time
from dataclasses import replace

from llm_perf_opt.core.protocols import KnowsClosedForms, ModelAdapter
from llm_perf_opt.core.source_figures import Method, SourceFigures
from llm_perf_opt.core.workload import Workload


class ClosedForm:
    """Asks the adapter; one that knows no formulas gives a single record that says so.

    A formula has no run to look at, so tokens are spread over experts as evenly as they can be.
    """

    runs_model = False

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase. A workload that makes no sense is refused, as everywhere."""
        if not isinstance(adapter, KnowsClosedForms):
            return (_no_forms(adapter),)
        started = time.perf_counter()
        formulas = adapter.closed_forms(workload)
        if not formulas:
            return (_no_forms(adapter),)
        seconds = (time.perf_counter() - started) / max(1, len(formulas))
        return tuple(replace(figures, routing="uniform", seconds=seconds) for figures in formulas)


def _no_forms(adapter: ModelAdapter) -> SourceFigures:
    return SourceFigures(
        source="closed-form",
        phase="total",
        stage="total",
        method=Method.CLOSED_FORM,
        failure=f"no closed forms are known for {adapter.title}",
    )
