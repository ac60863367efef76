"""Two runs side by side: what differs, why, and whether it stays within the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.answer import Answer
from llm_perf_opt.comparisons import (
    DEFAULT_ROWS,
    Budget,
    BudgetFigures,
    Compared,
    Comparison,
    Finding,
    LonePhase,
    StagePair,
    check_budget,
    compare,
    comparison_report,
    match_phases,
    parse_budget,
    stage_pairs,
    time_table,
    total_pair,
)
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware.links import Hardware, find_hardware, require_room
from llm_perf_opt.core.report import Report, change_text, counted, listed
from llm_perf_opt.core.units import format_bytes, format_count, format_flops, format_seconds
from llm_perf_opt.timing.datasheet_rates import Execution
from llm_perf_opt.timing.rate_sources import refuse_rates, source_of
from llm_perf_opt.tracing.deployed_traces import deployed_device
from llm_perf_opt.tracing.traced_run import TracedRun

if TYPE_CHECKING:
    from llm_perf_opt.comparisons import BudgetCheck
    from llm_perf_opt.timing.rates import RateSource


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
    execution: str | None = None  # that times are of; None: there are none
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

    @property
    def answer(self) -> tuple[str, ...]:
        """Whether the runs differ and why, by how much, and whether the budgets hold."""
        count, unknown = self.differences, self.unexplained
        known = "all with a known cause" if not unknown else f"{format_count(unknown)} without a known cause"
        differ = f"The traces have {counted(count, 'difference')}, {known}."
        first = differ if count else "The traces agree in everything that both record."
        pair = (self.total.left, self.total.right)
        sides = [(None, None) if side is None else (side.flops, side.bytes_moved) for side in pair]
        flops = change_text(sides[0][0], sides[1][0], format_flops)
        moved = change_text(sides[0][1], sides[1][1], format_bytes)
        lines = [first, f"FLOPs: {flops}; bytes moved: {moved}{self._time_text()}."]
        if self.budgets:
            broken = self.budgets_broken
            met = f"Budgets met: {len(self.budgets) - len(broken)} of {len(self.budgets)}"
            lines.append(f"{met}; not met: {listed(broken)}." if broken else f"{met}.")
        return tuple(lines)

    def _time_text(self) -> str:
        """The time of all phases on both sides, and who launches the kernels."""
        if (times := self._compared.times) is None or times.footer is None:
            return ""
        left, right = (cell if isinstance(cell, float) else None for cell in times.footer[-3:-1])
        return f"; {times.title[:1].lower()}{times.title[1:]}: {change_text(left, right, format_seconds)}"

    def report(self) -> Report:
        """Stages side by side, budgets, causes, and the families of modules that differ."""
        return replace(comparison_report(self._compared, self._rows), answer=self.answer)


def comparison_answer(
    left: TracedRun,
    right: TracedRun,
    *,
    phases: Sequence[str] = (),
    budgets: Sequence[str] = (),
    rows: int | None = None,
    device: str | Hardware | None = None,
    devices_file: Path | None = None,
    execution: str = Execution.FUSED,
    rates: str | None = None,
) -> ComparisonAnswer:
    """Compare two traces phase by phase; `phases` picks some, `rows` limits the families that the report lists."""
    wanted = [parse_budget(text) for text in budgets]
    source = _rates((left, right), wanted, device, devices_file=devices_file, execution=execution, rates=rates)
    matched = match_phases(left.graphs, right.graphs, tuple(phases))
    pairs = tuple(compare(*pair) for pair in matched.pairs)
    compared = _compared((left, right), pairs, matched.lone, wanted, source, execution)
    return ComparisonAnswer(
        left=left.name,
        right=right.name,
        phases=tuple(
            PhaseDifferences(
                phase=comparison.phase, stages=tuple(stage_pairs(comparison)), findings=comparison.findings
            )
            for comparison in compared.comparisons
        ),
        lone_phases=matched.lone,
        total=total_pair(compared.comparisons),
        budgets=compared.verdicts,
        execution=None if source is None else execution,
        _compared=compared,
        _rows=DEFAULT_ROWS if rows is None else rows,
    )


def _compared(
    sides: tuple[TracedRun, TracedRun],
    comparisons: tuple[Comparison, ...],
    lone: tuple[LonePhase, ...],
    budgets: Sequence[Budget],
    rates: RateSource | None,
    execution: str,
) -> Compared:
    """What the report shows: times where there are rates, and the verdict on every budget."""
    left, right = sides
    if not budgets and rates is None:
        return Compared(left=left.name, right=right.name, comparisons=comparisons, lone=lone)
    figures = BudgetFigures(comparisons, runs=(left.graphs, right.graphs), rates=rates)
    return Compared(
        left=left.name,
        right=right.name,
        comparisons=comparisons,
        lone=lone,
        verdicts=tuple(check_budget(budget, figures) for budget in budgets),
        times=None if rates is None else time_table(figures, f"{rates.title}, {Execution(execution).text}"),
        time_notes=() if rates is None else tuple(rates.notes()),
    )


def _rates(
    sides: tuple[TracedRun, TracedRun],
    budgets: Sequence[Budget],
    device: str | Hardware | None,
    *,
    devices_file: Path | None,
    execution: str,
    rates: str | None,
) -> RateSource | None:
    """What times both runs: a device that is named, or the one that both were made for where a budget needs it."""
    timed = [budget.text for budget in budgets if budget.is_time]
    if device is None and timed:
        made_for = {deployed_device(side.graphs) for side in sides}
        device = made_for.pop() if len(made_for) == 1 else None
        if device is None:
            raise UsageError(
                f"The budget {timed[0]} needs a device.",
                why="it limits a time, and the two traces were not made for the same device",
                fix="add --gpus NAME; llm-perf-opt devices list shows them",
            )
    if device is None:
        return None
    refuse_rates(execution, rates, None)
    hardware = find_hardware(device, devices_file)
    for side in sides:
        require_room(side.graphs, hardware)
    return source_of(hardware, execution, rates, runs=[side.graphs for side in sides])
