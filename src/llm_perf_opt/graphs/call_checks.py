"""Calls expected and found: the configuration, the page and the steps against the calls of the trace.

The expected figures were stated before the run (`core/target.py`), so the two can differ. A model of which no
rule is known states none, and has no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.module_selection import recorded_only
from llm_perf_opt.core.report import Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.core.target import ExpectedCalls, RoutedExperts, read_expected_calls
from llm_perf_opt.core.units import format_count
from llm_perf_opt.ops.grouped_experts import expected_distinct

TITLE = "Calls expected and found"
OK = "OK"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCheck:
    """One kind of module in one phase. The two limits are equal where the expected number is exact."""

    phase: str
    what: str
    formula: str
    at_least: int
    at_most: int
    found: int

    @property
    def is_as_expected(self) -> bool:
        """Whether the calls found are within the limits."""
        return self.at_least <= self.found <= self.at_most

    @property
    def difference(self) -> int:
        """Calls too many, or too few as a negative number; 0 within the limits."""
        return self.found - min(max(self.found, self.at_least), self.at_most)


def call_checks(graphs: Sequence[CallGraph]) -> tuple[CallCheck, ...]:
    """Every check that the phases of a run state; a phase that stopped half-way or was filtered has none."""
    return tuple(
        check
        for graph in graphs
        if graph.stopped_in is None and recorded_only(graph.workload) is None
        for expected in read_expected_calls(graph.runtime)
        for check in _check(graph, expected)
    )


def _check(graph: CallGraph, expected: ExpectedCalls) -> Iterator[CallCheck]:
    calls = _calls(graph, expected.paths) if expected.paths else _fact(graph, expected.fact)
    if calls is None:
        return
    formula, at_least, at_most = expected.formula, expected.calls, expected.calls
    if expected.routed is not None:
        touched, at_least, at_most = _touched(graph, expected.routed)
        formula = f"{formula}: {touched}"
    if at_least is not None and at_most is not None:
        yield CallCheck(
            phase=graph.phase, what=expected.what, formula=formula, at_least=at_least, at_most=at_most, found=calls
        )


def _calls(graph: CallGraph, paths: str) -> int:
    pattern = re.compile(re.escape(paths).replace(r"\*", r"[^.]+"))
    return sum(count for path, count in graph.call_counts.items() if pattern.fullmatch(path))


def _fact(graph: CallGraph, name: str) -> int | None:
    """The sum of a runtime fact that was observed in the run; None where the adapter only claims it."""
    fact, observed = graph.runtime.get(name), graph.runtime.get("observed")
    if not isinstance(observed, list) or name not in observed:
        return None
    counts = fact if isinstance(fact, list) else [fact]
    return sum(counts) if all(type(count) is int for count in counts) else None


def _touched(graph: CallGraph, routed: RoutedExperts) -> tuple[str, int, int]:
    """Experts touched in one layer and forward, in words, and the calls of all of them at least and at most."""
    policy = graph.workload.get("routing")
    most = min(routed.experts, routed.chosen * routed.tokens)
    least = min(routed.chosen, most)
    if policy == "uniform":
        least = most = min(most, max(least, round(expected_distinct(routed.experts, routed.chosen, routed.tokens))))
    elif policy == "balanced":
        least = most
    elif policy == "one":
        most = least
    span = format_count(least) if least == most else f"{format_count(least)} to {format_count(most)}"
    tokens = f"{format_count(routed.tokens)} token{'' if routed.tokens == 1 else 's'}"
    words = f"{span} of {format_count(routed.experts)} ({tokens} choosing {routed.chosen})"
    blocks = routed.layers * routed.forwards
    return words, least * blocks, most * blocks


def with_call_checks(report: Report, checks: Sequence[CallCheck]) -> Report:
    """The report with the table and its notes; as it is where there is nothing to check."""
    if not checks:
        return report
    return replace(report, tables=(*report.tables, call_table(checks)), notes=(*report.notes, *call_notes(checks)))


def call_notes(checks: Sequence[CallCheck]) -> Iterator[Note]:
    """How many checks hold, in one line, and a warning for each that does not."""
    if not checks:
        return
    as_expected = sum(check.is_as_expected for check in checks)
    kinds = f"{as_expected} of {len(checks)} kinds of module"
    yield Note(f"Calls: {kinds} ran as often as the configuration, the inputs and the steps imply.")
    for check in checks:
        if not check.is_as_expected:
            yield Note(
                f"{check.phase}: {check.what}: {_expected(check)} expected ({check.formula}), "
                f"{format_count(check.found)} found.",
                Level.WARNING,
            )


def call_table(checks: Sequence[CallCheck]) -> Table:
    """One row per check, with the formula in words."""
    return table_of(
        TITLE,
        checks,
        {
            Column("phase"): lambda check: check.phase,
            Column("modules"): lambda check: check.what,
            Column("formula"): lambda check: check.formula,
            Column("expected"): _expected,
            Column("found", Kind.COUNT): lambda check: check.found,
            Column("result"): lambda check: OK if check.is_as_expected else f"{check.difference:+,}",
        },
        origin="module calls in the trace",
    )


def _expected(check: CallCheck) -> str:
    if check.at_least == check.at_most:
        return format_count(check.at_least)
    return f"{format_count(check.at_least)} to {format_count(check.at_most)}"
