"""Two traces side by side: what differs, why, and whether it stays within a budget."""

from llm_perf_opt.comparisons.budgets import (
    METRICS,
    Budget,
    BudgetCheck,
    BudgetFigures,
    check_budget,
    parse_budget,
    time_table,
)
from llm_perf_opt.comparisons.causes import Comparison, LonePhase, Matched, compare, match_phases
from llm_perf_opt.comparisons.comparison_report import DEFAULT_ROWS, Compared, comparison_report
from llm_perf_opt.comparisons.difference import Aspect, Difference, Finding
from llm_perf_opt.comparisons.stage_pairs import StagePair, stage_pairs, stages_by_name, total_pair

__all__ = [
    "DEFAULT_ROWS",
    "METRICS",
    "Aspect",
    "Budget",
    "BudgetFigures",
    "Compared",
    "Comparison",
    "Difference",
    "Finding",
    "LonePhase",
    "Matched",
    "BudgetCheck",
    "StagePair",
    "check_budget",
    "compare",
    "comparison_report",
    "match_phases",
    "parse_budget",
    "stage_pairs",
    "stages_by_name",
    "time_table",
    "total_pair",
]
