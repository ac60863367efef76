"""What the adapter can tell by formula, without running anything."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

from llm_perf_opt.core.protocols import KnowsClosedForms, ModelAdapter, Workload
from llm_perf_opt.core.source_figures import Method, Testimony


class ClosedForm:
    """Asks the adapter; one that knows no formulas gives a single testimony that says so.

    A formula has no run to look at, so tokens are spread over experts as evenly as they can be.
    """

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase. A workload that makes no sense is refused, as everywhere."""
        if not hasattr(adapter, "closed_forms"):
            return (_silence(adapter),)
        started = time.perf_counter()
        told = cast("KnowsClosedForms", adapter).closed_forms(workload)
        seconds = (time.perf_counter() - started) / max(1, len(told))
        return tuple(replace(testimony, routing="uniform", seconds=seconds) for testimony in told)


def _silence(adapter: ModelAdapter) -> Testimony:
    return Testimony(
        source="closed-form",
        phase="total",
        stage="total",
        method=Method.CLOSED_FORM,
        failure=f"no closed forms are known for {adapter.title}",
    )
