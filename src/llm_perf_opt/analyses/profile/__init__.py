"""A timed run joined with what it cost: how long, how close to the device, and what held it back."""

from llm_perf_opt.analyses.profile.document import METRICS_VERSION, metrics_document
from llm_perf_opt.analyses.profile.join import RunFigures, Spread, StageFigures, WorkloadCosts, join_run, spread_of
from llm_perf_opt.analyses.profile.report import profile_report

__all__ = [
    "METRICS_VERSION",
    "RunFigures",
    "Spread",
    "StageFigures",
    "WorkloadCosts",
    "join_run",
    "metrics_document",
    "profile_report",
    "spread_of",
]
