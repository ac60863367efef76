"""Two traces side by side: what differs, why, and whether it stays within a budget."""

from llm_perf_opt.analyses.comparison.budgets import METRICS, Budget, Verdict, check_budget, parse_budget
from llm_perf_opt.analyses.comparison.comparison_report import DEFAULT_ROWS, Compared, comparison_report
from llm_perf_opt.analyses.comparison.difference import Aspect, Difference, Finding
from llm_perf_opt.analyses.comparison.explain import Comparison, compare
from llm_perf_opt.analyses.comparison.phases import LonePhase, Matched, match_phases
from llm_perf_opt.analyses.comparison.stage_pairs import stages_by_name

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
    "Verdict",
    "check_budget",
    "compare",
    "comparison_report",
    "match_phases",
    "parse_budget",
    "stages_by_name",
]
