"""Two traces side by side: what differs, why, and whether it stays within a budget."""

from llm_perf_opt.analyses.compare.budgets import (
    METRICS,
    Budget,
    BudgetCheck,
    check_budget,
    parse_budget,
    stages_by_name,
)
from llm_perf_opt.analyses.compare.comparison_report import DEFAULT_ROWS, Compared, comparison_report
from llm_perf_opt.analyses.compare.difference import Aspect, Difference, Finding
from llm_perf_opt.analyses.compare.explain import Comparison, LonePhase, Matched, compare, match_phases

__all__ = [
    "DEFAULT_ROWS",
    "METRICS",
    "Aspect",
    "Budget",
    "Compared",
    "Comparison",
    "Difference",
    "Finding",
    "LonePhase",
    "Matched",
    "BudgetCheck",
    "check_budget",
    "compare",
    "comparison_report",
    "match_phases",
    "parse_budget",
    "stages_by_name",
]
