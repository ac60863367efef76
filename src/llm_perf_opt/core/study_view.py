"""What the page of a study shows: points to draw, with both edges of every figure, and tables beside them."""

from __future__ import annotations

from dataclasses import dataclass

from llm_perf_opt.core.report import Report

TEXTS = ("model", "device", "plan", "weights", "workload")  # what points are filtered and coloured by
SIZES = ("device_count", "global_batch", "context", "watts")
BANDS = ("ttft_s", "tpot_s", "run_s", "tokens_per_s", "requests_per_s", "token_cost", "request_cost")  # low and high
FIELDS = (*TEXTS, *SIZES, *(f"{name}_{edge}" for name in BANDS for edge in ("low", "high")))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """Points as columns of `FIELDS`, one list for each; `left_out` says how many of all are not drawn, and why."""

    title: str
    points: dict[str, list[str | int | float | None]]
    total: int
    currency: str
    is_pages: bool  # whether a request is a page: the workload has images
    left_out: str
    report: Report  # tables for people and screen readers

    @property
    def shown(self) -> int:
        """How many points are drawn."""
        return len(self.points[FIELDS[0]])
