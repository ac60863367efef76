"""A comparison as tables: the stages side by side, why they differ, and the differences by family of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from llm_perf_opt.comparisons.budgets import BudgetCheck, budget_notes, budget_tables, change_text
from llm_perf_opt.comparisons.causes import Comparison, LonePhase, filter_notes
from llm_perf_opt.comparisons.difference import COST_ASPECTS, Aspect, Difference, Finding, Value, Weights
from llm_perf_opt.comparisons.side import OwnOps, Tensor
from llm_perf_opt.comparisons.stage_pairs import StagePair, stage_pairs, total_pair
from llm_perf_opt.core.callgraph.queries import label_of, path_pattern
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table
from llm_perf_opt.core.units import format_bytes, format_count, format_flops
from llm_perf_opt.costs.run_description import setting_text, workload_note
from llm_perf_opt.costs.stage_costs import StageCost
from llm_perf_opt.costs.static_report import short_name

_MOST_SETS = 2
_MOST_TENSORS = 2
_MOST_OPS = 3
_MOST_RUNS = 4  # of numbers in the label of a family


def value_texts(difference: Difference) -> tuple[str, str]:
    """Left and right; of long lists only what differs, and only its beginning."""
    left, right = difference.left, difference.right
    if difference.aspect in {Aspect.INPUTS, Aspect.OUTPUTS} and isinstance(left, tuple):
        return _observed_text(difference, 0), _observed_text(difference, 1)
    if isinstance(left, OwnOps) and isinstance(right, OwnOps):
        return _own_text(difference.aspect, left, right), _own_text(difference.aspect, right, left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return _weights_text(cast("Weights", left)), _weights_text(cast("Weights", right))
    return _plain_text(difference, left), _plain_text(difference, right)


def _plain_text(difference: Difference, value: Value) -> str:
    if isinstance(value, int):
        by = f" by {difference.caller or '(root)'}" if difference.aspect is Aspect.EDGE else ""
        what = "op" if difference.aspect is Aspect.OPS else "call"
        return f"{format_count(value)} {what}{'s' if value != 1 else ''}{by}"
    return "-" if value is None else str(value)


def _weights_text(weights: Weights) -> str:
    return _listed([f"{name} {_tensor_text(tensor)}" for name, tensor in weights], _MOST_TENSORS) or "-"


def _observed_text(difference: Difference, side: int) -> str:
    mine, theirs = dict(difference.observed[side]), dict(difference.observed[1 - side])
    own = {tensors: calls for tensors, calls in mine.items() if theirs.get(tensors) != calls}
    sets = [
        f"{calls} x ({_listed([_tensor_text(tensor) for tensor in tensors], _MOST_TENSORS)})"
        for tensors, calls in own.items()
    ]
    return _listed(sets, _MOST_SETS) or "-"


def _tensor_text(tensor: Tensor) -> str:
    shape, dtype = tensor
    return f"{dtype}[{','.join(map(str, shape))}]"


def _own_text(aspect: Aspect, mine: OwnOps, theirs: OwnOps) -> str:
    if aspect is Aspect.FLOPS:
        return format_flops(mine.flops)
    if aspect is Aspect.BYTES:
        return format_bytes(mine.bytes_moved)
    other = dict(theirs.names)
    differing = [f"{short_name(name)} {format_count(count)}" for name, count in mine.names if other.get(name) != count]
    return _listed(differing, _MOST_OPS) or "-"


def _listed(parts: list[str], most: int) -> str:
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f", +{more}" if more > 0 else "")


UNEXPLAINED = "unexplained"
DEFAULT_ROWS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Everything that goes into the report. `left` and `right` are what a person called the two runs."""

    left: str
    right: str
    comparisons: tuple[Comparison, ...]
    lone: tuple[LonePhase, ...] = ()
    verdicts: tuple[BudgetCheck, ...] = ()
    times: Table | None = None  # of both on one device; None: no device was named
    time_notes: tuple[Note, ...] = ()

    @property
    def unexplained(self) -> int:
        """Differences without a cause, a phase without a partner among them."""
        lone = sum(phase.cause is None for phase in self.lone)
        return lone + sum(len(comparison.unexplained) for comparison in self.comparisons)


def comparison_report(compared: Compared, max_rows: int = DEFAULT_ROWS) -> Report:
    """The tables of a comparison; `max_rows` limits the one that lists families, unexplained ones first."""
    families = _families(compared.comparisons)
    tables = [
        *budget_tables(compared.verdicts),  # where there are any, they are the answer
        _stage_table(compared.comparisons),
        *([] if compared.times is None else [compared.times]),
        *_header_tables(compared.comparisons),
        *([_cause_table(compared.comparisons), _family_table(families[:max_rows])] if families else []),
    ]
    models = dict.fromkeys(side.graph.model for comparison in compared.comparisons for side in comparison.pair.sides)
    return Report(
        title=f"{' and '.join(models)}: two runs side by side",
        tables=tuple(tables),
        notes=tuple(_notes(compared, len(families) - max_rows)),
    )


def _stage_table(comparisons: Sequence[Comparison]) -> Table:
    pairs = [pair for comparison in comparisons for pair in stage_pairs(comparison)]
    total = total_pair(comparisons)
    columns = (
        Column("phase"),
        Column("stage"),
        Column("calls A", Kind.COUNT),
        Column("calls B", Kind.COUNT),
        Column("FLOPs A", Kind.FLOPS),
        Column("FLOPs B", Kind.FLOPS),
        Column("FLOPs change"),
        Column("bytes moved A", Kind.BYTES),
        Column("bytes moved B", Kind.BYTES),
        Column("bytes change"),
    )
    return Table(title="Stages", columns=columns, rows=tuple(map(_stage_row, pairs)), footer=_stage_row(total))


def _stage_row(pair: StagePair) -> tuple[Cell, ...]:
    def both(name: str) -> tuple[int | None, int | None]:
        return _figure(pair.left, name), _figure(pair.right, name)

    flops, bytes_moved = both("flops"), both("bytes_moved")
    return (
        pair.phase or "all",
        pair.stage,
        *both("calls"),
        *flops,
        change_text(*flops),
        *bytes_moved,
        change_text(*bytes_moved),
    )


def _figure(cost: StageCost | None, name: str) -> int | None:
    return None if cost is None else getattr(cost, name)


def _header_tables(comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Fields of the header that differ; one row where the phases agree on it."""
    phases_of: dict[tuple[str, str, str], list[str]] = {}
    for comparison in comparisons:
        for field, (left, right) in comparison.pair.changed_fields().items():
            phases_of.setdefault((field, _header_text(left), _header_text(right)), []).append(comparison.phase)
    if phases_of:
        rows = tuple(
            (field, "all" if len(phases) == len(comparisons) else ", ".join(phases), left, right)
            for (field, left, right), phases in phases_of.items()
        )
        columns = (Column("field"), Column("phase"), Column("A"), Column("B"))
        yield Table(title="What the headers say", columns=columns, rows=rows)


def _header_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return setting_text(value)
    return "-" if value is None else str(value)


def _cause_table(comparisons: Sequence[Comparison]) -> Table:
    """One row per cause and what proves it; the changes add up to the changes of the stages."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for comparison in comparisons:
        for finding in comparison.findings:
            key = (finding.cause or UNEXPLAINED, comparison.phase, finding.detail)
            groups.setdefault(key, []).append(finding)
    knows_cost = all(side.own_ops is not None for comparison in comparisons for side in comparison.pair.sides)
    columns = (
        Column("cause"),
        Column("phase"),
        Column("what shows it"),
        Column("modules", Kind.COUNT),
        Column("differences", Kind.COUNT),
        Column("FLOPs B - A", Kind.FLOPS),
        Column("bytes moved B - A", Kind.BYTES),
    )
    ordered = sorted(groups.items(), key=lambda group: (group[0][0] != UNEXPLAINED, -len(group[1])))
    rows = tuple((cause, phase, detail, *_sums(findings, knows_cost)) for (cause, phase, detail), findings in ordered)
    every = [finding for comparison in comparisons for finding in comparison.findings]
    return Table(
        title="Why they differ", columns=columns, rows=rows, footer=("total", "", "", *_sums(every, knows_cost))
    )


def _sums(findings: Sequence[Finding], knows_cost: bool) -> tuple[Cell, ...]:
    differences = [finding.difference for finding in findings]
    return (
        len({difference.path for difference in differences}),
        len(differences),
        sum(difference.flops_change for difference in differences) if knows_cost else None,
        sum(difference.bytes_change for difference in differences) if knows_cost else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    phase: str
    cause: str
    findings: tuple[Finding, ...]

    @property
    def weight(self) -> tuple[bool, int, int]:
        """Unexplained first, then by FLOPs, then by number."""
        flops = sum(abs(finding.difference.flops_change) for finding in self.findings)
        return self.cause != UNEXPLAINED, -flops, -len(self.findings)


def _families(comparisons: Sequence[Comparison]) -> list[_Family]:
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for comparison in comparisons:
        for finding in comparison.findings:
            key = (comparison.phase, finding.cause or UNEXPLAINED, path_pattern(finding.difference.path))
            groups.setdefault(key, []).append(finding)
    families = [
        _Family(phase=phase, cause=cause, findings=tuple(findings)) for (phase, cause, _), findings in groups.items()
    ]
    return sorted(families, key=lambda family: family.weight)


def _family_table(families: Sequence[_Family]) -> Table:
    columns = (
        Column("cause"),
        Column("phase"),
        Column("modules"),
        Column("number", Kind.COUNT),
        Column("what differs"),
        Column("A, for example"),
        Column("B, for example"),
        Column("FLOPs B - A", Kind.FLOPS),
    )
    return Table(title="Differences by family of modules", columns=columns, rows=tuple(map(_family_row, families)))


def _family_row(family: _Family) -> tuple[Cell, ...]:
    differences = [finding.difference for finding in family.findings]
    paths = list(dict.fromkeys(difference.path for difference in differences))
    aspects = dict.fromkeys(difference.aspect for difference in differences)
    knows_cost = any(difference.aspect in COST_ASPECTS for difference in differences)
    left, right = value_texts(differences[0])
    return (
        family.cause,
        family.phase,
        label_of(paths, _MOST_RUNS) or "(root)",
        len(paths),
        ", ".join((f"{aspect}*" if aspect is differences[0].aspect else str(aspect)) for aspect in aspects),
        left,
        right,
        sum(difference.flops_change for difference in differences) if knows_cost else None,
    )


def _notes(compared: Compared, families_left_out: int) -> Iterator[Note]:
    yield Note(f"A is {compared.left}, B is {compared.right}. The devices are not compared.")
    yield from filter_notes([comparison.pair for comparison in compared.comparisons])
    yield from _workload_notes(compared.comparisons)
    for lone in compared.lone:
        level = Level.INFO if lone.cause else Level.WARNING
        yield Note(f"Only {lone.side} has the phase {lone.phase}: {lone.cause or UNEXPLAINED}.", level)
    yield from compared.time_notes
    yield from budget_notes(compared.verdicts)
    if families_left_out > 0:
        yield Note(f"{format_count(families_left_out)} more families of modules are not listed; --rows N shows more.")
    if compared.unexplained:
        yield Note(f"Unexplained differences: {format_count(compared.unexplained)}.", Level.WARNING)
    elif any(comparison.findings for comparison in compared.comparisons):
        yield Note("Every difference has a cause. Costs follow from calls and tensors, so they share their causes.")
    else:
        yield Note("The traces agree in everything that both of them record.")


def _workload_notes(comparisons: Sequence[Comparison]) -> Iterator[Note]:
    """What each of the two ran; one sentence where it is the same."""
    left, right = (
        workload_note([comparison.pair.sides[side].graph for comparison in comparisons]).text.removeprefix("Workload: ")
        for side in (0, 1)
    )
    if left == right:
        yield Note(f"Workload of both: {left}")
    else:
        yield Note(f"Workload of A: {left}")
        yield Note(f"Workload of B: {right}")
