"""Two runs side by side: what differs, why, and whether it stays within the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_perf_opt.analyses.compare import (
    DEFAULT_ROWS,
    Compared,
    Finding,
    LonePhase,
    check_budget,
    compare,
    comparison_report,
    match_phases,
    parse_budget,
    stages_by_name,
)
from llm_perf_opt.analyses.compare.budgets import StagePair, stage_pairs, total_pair
from llm_perf_opt.api.answer import Answer
from llm_perf_opt.core.report import Report

if TYPE_CHECKING:
    from llm_perf_opt.analyses.compare import BudgetCheck
    from llm_perf_opt.api.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDifferences:
    """One phase of both runs: the stages side by side, and every fact that they do not share, with its cause."""

    phase: str
    stages: tuple[StagePair, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ComparisonAnswer(Answer):
    """The phases that both runs have, those that one has alone, and the budgets on the second run."""

    left: str
    right: str
    phases: tuple[PhaseDifferences, ...]
    lone_phases: tuple[LonePhase, ...]
    total: StagePair
    budgets: tuple[BudgetCheck, ...]
    _compared: Compared
    _rows: int

    @property
    def differences(self) -> int:
        """How many facts differ."""
        return sum(len(phase.findings) for phase in self.phases) + len(self.lone_phases)

    @property
    def unexplained(self) -> int:
        """Differences without a proved cause, a phase without a partner among them."""
        return self._compared.unexplained

    @property
    def budgets_broken(self) -> tuple[str, ...]:
        """The budgets that do not hold, as they were written."""
        return tuple(verdict.budget.text for verdict in self.budgets if not verdict.holds)

    def report(self) -> Report:
        """Stages side by side, budgets, causes, and the families of modules that differ."""
        return comparison_report(self._compared, self._rows)


def comparison_answer(
    left: Trace, right: Trace, *, phases: Sequence[str] = (), budgets: Sequence[str] = (), rows: int | None = None
) -> ComparisonAnswer:
    """Compare two traces phase by phase; `phases` picks some, `rows` limits the families that the report lists."""
    wanted = [parse_budget(text) for text in budgets]
    matched = match_phases(left.graphs, right.graphs, tuple(phases))
    comparisons = tuple(compare(*pair) for pair in matched.pairs)
    stages = stages_by_name(comparisons) if wanted else {}
    compared = Compared(
        left=left.name,
        right=right.name,
        comparisons=comparisons,
        lone=matched.lone,
        verdicts=tuple(check_budget(budget, stages) for budget in wanted),
    )
    return ComparisonAnswer(
        left=left.name,
        right=right.name,
        phases=tuple(
            PhaseDifferences(
                phase=comparison.phase, stages=tuple(stage_pairs(comparison)), findings=comparison.findings
            )
            for comparison in comparisons
        ),
        lone_phases=matched.lone,
        total=total_pair(comparisons),
        budgets=compared.verdicts,
        _compared=compared,
        _rows=DEFAULT_ROWS if rows is None else rows,
    )
