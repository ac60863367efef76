"""A timed run joined with what it cost: how long, how close to the device, and what held it back."""

from llm_perf_opt.analyses.profile.document import METRICS_VERSION, metrics_document
from llm_perf_opt.analyses.profile.join import RunFigures, StageFigures, WorkloadCosts, join_run
from llm_perf_opt.analyses.profile.report import profile_report
from llm_perf_opt.analyses.profile.spread import Spread, spread_of

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
