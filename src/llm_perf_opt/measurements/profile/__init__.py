"""A timed run joined with what it cost: how long, how close to the device, and what held it back."""

from llm_perf_opt.measurements.profile.join import RunFigures, Spread, TimedStage, WorkloadCosts, join_run, spread_of
from llm_perf_opt.measurements.profile.metrics_file import METRICS_VERSION
from llm_perf_opt.measurements.profile.report import metrics_document, profile_report

__all__ = [
    "METRICS_VERSION",
    "RunFigures",
    "Spread",
    "TimedStage",
    "WorkloadCosts",
    "join_run",
    "metrics_document",
    "profile_report",
    "spread_of",
]
