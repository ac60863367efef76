"""Why two traces differ. Importing a file adds its causes; the order here is the order in which they are asked."""

from llm_perf_opt.analyses.comparison.causes import (  # isort: skip  # the order is the meaning
    tracer_sight,
    routing,
    direct_forward,
    tensor_listing,
    extra_tensors,
    stored_format,
    loops,
    workload,
    identity,
)
from llm_perf_opt.analyses.comparison.causes.cause_table import CAUSES, Cause, CauseTable

__all__ = [
    "CAUSES",
    "Cause",
    "CauseTable",
    "direct_forward",
    "extra_tensors",
    "identity",
    "loops",
    "routing",
    "stored_format",
    "tensor_listing",
    "tracer_sight",
    "workload",
]
