"""The matrix of an export lab as tables: what exports, why not, what may vary, and whether the figures agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_perf_opt.analyses.export.export_figures import PartFlops, operator_table
from llm_perf_opt.core.export_outcome import Check, CompileFigures, Outcome, PartOutcome, Verdict
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table

_NOT_ASKED = "not asked for"
_MAY_VARY = {Verdict.OK: "may vary", Verdict.FAILED: "fixed", Verdict.SKIPPED: "not tried"}


def export_report(model: str, parts: Sequence[PartOutcome], flops: Sequence[PartFlops]) -> Report:
    """Everything the lab found; the operators of each exported graph are chapters of their own."""
    tables = (
        _matrix(parts),
        _reasons(parts),
        _axes(parts),
        _flops(flops),
        _parity(parts),
        _compiled(parts),
        _breaks(parts),
        _inputs(parts),
    )
    return Report(
        title=f"{model}: what exports",
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(parts, flops)),
        chapters=tuple(
            Report(title=f"{part.name}: {part.title or part.class_name}", tables=(operator_table(part),))
            for part in parts
            if part.ops is not None
        ),
    )


def _matrix(parts: Sequence[PartOutcome]) -> Table:
    checks = [check for check in Check if any(part.outcome(check).told != _NOT_ASKED for part in parts)]
    return Table(
        title="What exports",
        columns=(
            Column("part"),
            Column("class"),
            Column("parameters", Kind.COUNT),
            *(Column(check.value) for check in checks),
        ),
        rows=tuple(
            (part.name, part.class_name, part.parameters, *(_cell(part.outcome(check)) for check in checks))
            for part in parts
        ),
    )


def _cell(outcome: Outcome) -> str:
    """The verdict in one word, and for dynamic shapes what may vary."""
    if outcome.check is Check.DYNAMIC and outcome.verdict is Verdict.OK:
        return f"ok: {outcome.told.removeprefix('may vary: ')}"
    return outcome.verdict.value


def _reasons(parts: Sequence[PartOutcome]) -> Table:
    columns = ("part", "check", "verdict", "exception", "reason", "operator", "where", "line", "remedy")
    return Table(
        title="Why not",
        columns=tuple(map(Column, columns)),
        rows=tuple(
            (
                part.name,
                outcome.check.value,
                outcome.verdict.value,
                outcome.error or "",
                outcome.reason or outcome.told,
                outcome.operator or "",
                outcome.site or "",
                outcome.source_line or "",
                outcome.remedy or "",
            )
            for part in parts
            for outcome in part.outcomes
            if _is_refusal(outcome)
        ),
    )


def _is_refusal(outcome: Outcome) -> bool:
    """What failed, and what was not tried for a reason that is not told elsewhere."""
    if outcome.verdict is Verdict.SKIPPED:
        return outcome.remedy is not None
    return outcome.verdict is Verdict.FAILED


def _axes(parts: Sequence[PartOutcome]) -> Table:
    return Table(
        title="Which dimensions may vary",
        columns=(
            Column("part"),
            Column("dimension"),
            Column("argument"),
            Column("size", Kind.COUNT),
            Column("verdict"),
            Column("range"),
            Column("fixed by"),
            Column("where"),
            Column("line"),
        ),
        rows=tuple(
            (
                part.name,
                axis.axis,
                axis.argument,
                axis.size,
                _MAY_VARY[axis.verdict],
                axis.range,
                axis.guard or "",
                axis.site or "",
                axis.source_line or "",
            )
            for part in parts
            for axis in part.axes
        ),
    )


def _flops(flops: Sequence[PartFlops]) -> Table:
    return Table(
        title="FLOPs from three sources",
        columns=(
            Column("part"),
            Column("exported", Kind.FLOPS),
            Column("traced", Kind.FLOPS),
            Column("eager, torch's counter", Kind.FLOPS),
            Column("bytes moved", Kind.BYTES),
            Column("agreement"),
        ),
        rows=tuple(
            (part.name, part.exported, part.traced, part.eager, part.bytes_moved, _agreement(part)) for part in flops
        ),
    )


def _agreement(part: PartFlops) -> str:
    if part.causes:
        return "; ".join(part.causes)
    known = [figure for figure in (part.exported, part.traced, part.eager) if figure is not None]
    if part.exported is None or len(known) < 2:
        return "nothing to compare"
    return "equal to the FLOP"


def _parity(parts: Sequence[PartOutcome]) -> Table:
    return Table(
        title="onnxruntime against eager, random weights",
        columns=(
            Column("part"),
            Column("outputs", Kind.COUNT),
            Column("largest value"),
            Column("largest difference"),
            Column("of the largest value"),
        ),
        rows=tuple(
            (
                part.name,
                part.parity.outputs,
                f"{part.parity.largest_value:.3g}",
                f"{part.parity.max_abs_error:.1e}",
                f"{part.parity.max_rel_error:.1e}",
            )
            for part in parts
            if part.parity is not None
        ),
    )


def _compiled(parts: Sequence[PartOutcome]) -> Table:
    return Table(
        title="torch.compile against eager, medians of one process",
        columns=(
            Column("part"),
            Column("graphs", Kind.COUNT),
            Column("breaks", Kind.COUNT),
            Column("compile", Kind.SECONDS),
            Column("eager", Kind.SECONDS),
            Column("compiled", Kind.SECONDS),
            Column("compiled of eager", Kind.RATIO),
            Column("runs", Kind.COUNT),
            Column("threads", Kind.COUNT),
        ),
        rows=tuple(_compiled_row(part.name, part.compiled) for part in parts if part.compiled is not None),
    )


def _compiled_row(name: str, figures: CompileFigures) -> tuple[Cell, ...]:
    return (
        name,
        figures.graphs,
        len(figures.breaks),
        figures.compile_seconds,
        figures.eager_seconds,
        figures.compiled_seconds,
        figures.compiled_of_eager,
        figures.runs,
        figures.threads,
    )


def _breaks(parts: Sequence[PartOutcome]) -> Table:
    return Table(
        title="Where the compiled graph breaks",
        columns=tuple(map(Column, ("part", "where", "reason"))),
        rows=tuple(
            (part.name, found.site, found.reason)
            for part in parts
            if part.compiled is not None
            for found in part.compiled.breaks
        ),
    )


def _inputs(parts: Sequence[PartOutcome]) -> Table:
    return Table(
        title="What went in, and what was changed for it",
        columns=tuple(map(Column, ("part", "module", "phase", "inputs", "adaptations"))),
        rows=tuple(
            (
                part.name,
                ", ".join(part.wraps) if part.wraps != ("",) else "(root)",
                part.phase,
                "; ".join(part.inputs),
                "; ".join(part.adaptations) or "none",
            )
            for part in parts
        ),
    )


def _notes(parts: Sequence[PartOutcome], flops: Sequence[PartFlops]) -> Iterator[Note]:
    yield Note("Each part is taken with the arguments of its last distinct call in the run; nothing is materialised.")
    if any(part.parity is not None or part.compiled is not None for part in parts):
        yield Note("Only where numbers are compared or timed does a part get weights, which are random.")
    for figure in flops:
        if not figure.is_explained:
            yield Note(f"{figure.name}: the sources differ and no cause is known.", Level.WARNING)
        for name, count in figure.unpriced.items():
            yield Note(f"{figure.name}: {count} ops {name} have no price and are in no total.", Level.WARNING)
