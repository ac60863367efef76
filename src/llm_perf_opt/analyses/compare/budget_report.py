"""Budgets as tables, one for each kind of figure, and the times of two runs on one device side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from llm_perf_opt.analyses.compare.budget_figures import CACHE, PEAK_MEMORY, BudgetFigures
from llm_perf_opt.analyses.compare.budgets import BudgetCheck
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Table

_HELD = (PEAK_MEMORY, CACHE)


def change_text(left: float | None, right: float | None) -> str:
    """By how many per cent the right side is above the left."""
    if left is None or right is None:
        return "?"
    if left == right:
        return "="
    return f"{100 * (right - left) / left:+.2f} %" if left else "new"


def budget_tables(verdicts: Sequence[BudgetCheck]) -> Iterator[Table]:
    """Costs as exact counts, memory in bytes, times in seconds."""
    costs = [one for one in verdicts if not one.budget.is_time and one.budget.metric not in _HELD]
    held = [one for one in verdicts if one.budget.metric in _HELD]
    times = [one for one in verdicts if one.budget.is_time]
    titles = (
        ("Budgets", costs, Kind.COUNT),
        ("Budgets on memory", held, Kind.BYTES),
        ("Budgets on time", times, Kind.SECONDS),
    )
    return (_budget_table(title, found, kind) for title, found, kind in titles if found)


def _budget_table(title: str, verdicts: Sequence[BudgetCheck], kind: Kind) -> Table:
    columns = (
        Column("budget"),
        Column("A", kind),
        Column("B", kind),
        Column("change"),
        Column("limit for B", kind),
        Column("verdict"),
    )
    rows = [
        (
            one.budget.text,
            one.left,
            one.right,
            change_text(one.left, one.right),
            _limit(one.limit, kind),
            "holds" if one.holds else "violated" if not one.why else "not known",
        )
        for one in verdicts
    ]
    return Table(title=title, columns=columns, rows=tuple(rows))


def _limit(limit: Fraction | None, kind: Kind) -> Cell:
    if limit is None:
        return None
    return float(limit) if kind is Kind.SECONDS else round(limit)


def budget_notes(verdicts: Sequence[BudgetCheck]) -> Iterator[Note]:
    """One warning for each budget that does not hold."""
    for one in verdicts:
        if one.why:
            yield Note(f"Budget not shown to hold: {one.budget.text}: {one.why}.", Level.WARNING)
        elif not one.holds:
            yield Note(f"Budget violated: {one.budget.text}.", Level.WARNING)


def time_table(figures: BudgetFigures, machine: str) -> Table:
    """The lower bound of each stage, and its expected time; where no stage has one, the high edge of its band."""
    named = sorted(figures.stages.items(), key=lambda item: not item[1].phase)  # all phases together come last
    whole = [(pair.phase or "all", pair.stage, name) for name, pair in named if _is_full_name(name, pair.phase)]
    bounds, expected, high = (
        {name: tuple(one.value for one in figures.both(metric, name)) for *_, name in whole}
        for metric in ("bound", "time", "high")
    )
    is_expected = any(value is not None for pair in expected.values() for value in pair)
    shown, word = (expected, "expected") if is_expected else (high, "high")
    columns = (
        Column("phase"),
        Column("stage"),
        Column("lower bound A", Kind.SECONDS),
        Column("lower bound B", Kind.SECONDS),
        Column("bound change"),
        Column(f"{word} A", Kind.SECONDS),
        Column(f"{word} B", Kind.SECONDS),
        Column(f"{word} change"),
    )
    rows = [
        (phase, stage, *bounds[name], change_text(*bounds[name]), *shown[name], change_text(*shown[name]))
        for phase, stage, name in whole
    ]
    return Table(title=f"Times on {machine}", columns=columns, rows=tuple(rows[:-1]), footer=rows[-1])


def _is_full_name(name: str, phase: str) -> bool:
    return not phase or name.startswith(f"{phase}.")
