"""Two runs side by side, from their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.analyses.compare import (
    DEFAULT_ROWS,
    Compared,
    check_budget,
    compare,
    comparison_report,
    match_phases,
    parse_budget,
    stages_by_name,
)
from llm_perf_opt.api.trace_files import read_traces
from llm_perf_opt.core.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Everything `compare` can be asked for; each side is a trace file or a folder of them."""

    left: Path
    right: Path
    phases: tuple[str, ...] = ()  # empty: all
    budgets: tuple[str, ...] = ()
    rows: int = DEFAULT_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRun:
    """The report, and what a caller may fail on: differences without a cause, budgets that do not hold."""

    report: Report
    unexplained: int
    violated: tuple[str, ...]


def run_compare(request: CompareRequest) -> CompareRun:
    """Hold two runs side by side; folders are matched phase by phase. Needs no torch."""
    budgets = [parse_budget(text) for text in request.budgets]
    left, right = (read_traces([path]) for path in (request.left, request.right))
    matched = match_phases(left, right, request.phases)
    comparisons = tuple(compare(*pair) for pair in matched.pairs)
    stages = stages_by_name(comparisons) if budgets else {}
    compared = Compared(
        left=str(request.left),
        right=str(request.right),
        comparisons=comparisons,
        lone=matched.lone,
        verdicts=tuple(check_budget(budget, stages) for budget in budgets),
    )
    return CompareRun(
        report=comparison_report(compared, request.rows),
        unexplained=compared.unexplained,
        violated=tuple(verdict.budget.text for verdict in compared.verdicts if not verdict.holds),
    )
