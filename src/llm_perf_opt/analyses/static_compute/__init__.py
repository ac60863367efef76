"""The static compute report: every stage from every source, the preferred figure of each, and how well they agree."""

from llm_perf_opt.analyses.static_compute.document import SCHEMA_VERSION, static_compute_document
from llm_perf_opt.analyses.static_compute.figures import StageFigures, StaticCompute, static_compute
from llm_perf_opt.analyses.static_compute.static_report import static_report

__all__ = [
    "SCHEMA_VERSION",
    "StageFigures",
    "StaticCompute",
    "static_compute",
    "static_compute_document",
    "static_report",
]
