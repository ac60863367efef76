"""The matrix of the export lab as tables: what exports, why not, what may vary, and the FLOPs from three sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.export_outcome import Check, CheckOutcome, CompileFigures, CompileTrial, PartOutcome, Verdict
from llm_perf_opt.core.report import Cell, Column, Kind, Level, Note, Report, Table, table_of
from llm_perf_opt.costs.coverage import priced_total
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFlops:
    """`exported`: the static graph; `traced`: the same call in the trace; `eager`: torch's counter on an eager run.

    The first two share our formulas, the last has its own. `causes` is empty where all that are known are equal.
    """

    name: str
    exported: int | None
    traced: int | None
    eager: int | None
    bytes_moved: int | None  # by the ops of the exported graph
    unpriced: Mapping[str, int]
    causes: tuple[str, ...]
    is_explained: bool


def part_flops(outcome: PartOutcome, traced: dict[OpKind, int] | None) -> PartFlops:
    """Compare the sources with each other; `traced` are the ops of the call in the trace."""
    cost, unpriced = (None, ()) if outcome.ops is None else priced_total(_kinds(outcome))
    seen = None if traced is None else priced_total(traced)[0].flops
    exported = None if cost is None else cost.flops
    causes = (*_against_trace(outcome, exported, traced, seen), *_against_eager(outcome, exported))
    return PartFlops(
        name=outcome.name,
        exported=exported,
        traced=seen,
        eager=outcome.eager_flops,
        bytes_moved=None if cost is None else cost.bytes_moved,
        unpriced={op.name: op.count for op in unpriced},
        causes=tuple(cause for cause, _ in causes),
        is_explained=all(is_known for _, is_known in causes),
    )


def _kinds(outcome: PartOutcome) -> dict[OpKind, int]:
    return {op.kind: op.count for op in outcome.ops or ()}


def _against_trace(
    outcome: PartOutcome, exported: int | None, traced: dict[OpKind, int] | None, seen: int | None
) -> list[tuple[str, bool]]:
    """A cause is claimed only where the figures leave room for it; otherwise the ops that differ are named."""
    if exported is None or traced is None or exported == seen:
        return []
    if outcome.does_other_work:
        return [(f"the trace ran the module as it is: {outcome.adaptation}", True)]
    return [_decomposed(traced, _kinds(outcome)) or (_unexplained(traced, _kinds(outcome)), False)]


def _decomposed(traced: dict[OpKind, int], exported: dict[OpKind, int]) -> tuple[str, bool] | None:
    """Ops of the trace that stand in the graph under other names, where a missing price keeps the FLOPs from agreeing.

    With a price for every op the FLOPs of both sides are known, and taking an op apart does not change them.
    """
    gone, new = _unpriced_beyond(traced, exported), _unpriced_beyond(exported, traced)
    before = {*_work_beyond(traced, exported), *gone}
    after = {*_work_beyond(exported, traced), *new}
    if not (before and after and (gone or new)) or before & after:
        return None
    text = f"decomposed on export: {', '.join(sorted(before))} into {', '.join(sorted(after))}"
    return f"{text}; no price for {', '.join(sorted(gone | new))}", True


def _unexplained(traced: dict[OpKind, int], exported: dict[OpKind, int]) -> str:
    sides = {"the trace": _work_beyond(traced, exported), "the graph": _work_beyond(exported, traced)}
    parts = (
        f"only in {side} {', '.join(f'{name} with {flops:,} FLOPs' for name, flops in work.items())}"
        for side, work in sides.items()
        if work
    )
    return f"no cause is known: {'; '.join(parts)}"


def _against_eager(outcome: PartOutcome, exported: int | None) -> list[tuple[str, bool]]:
    """What torch's counter has no formula for can only make its figure too low."""
    if exported is None or outcome.eager_flops == exported:
        return []
    if outcome.eager_unknown is not None and (outcome.eager_flops is None or outcome.eager_flops < exported):
        return [(f"eager: {outcome.eager_unknown}", True)]
    return [] if outcome.eager_flops is None else [("eager: no cause is known", False)]


def _work_beyond(ours: dict[OpKind, int], theirs: dict[OpKind, int]) -> dict[str, int]:
    """FLOPs by op name that `ours` has more of, shape by shape."""
    more = _work(ours)
    more.subtract(_work(theirs))
    total: dict[str, int] = {}
    for (name, _), flops in sorted(more.items()):
        if flops > 0:
            total[name] = total.get(name, 0) + flops
    return total


def _unpriced_beyond(ours: dict[OpKind, int], theirs: dict[OpKind, int]) -> set[str]:
    """Names of ops without a price that only `ours` has."""
    known = {kind.name for kind in theirs}
    return {kind.name for kind in ours if price(kind) is None and kind.name not in known}


def _work(kinds: dict[OpKind, int]) -> Counter[tuple[str, tuple[tuple[int, ...], ...]]]:
    work: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = Counter()
    for kind, count in kinds.items():
        cost = price(kind)
        if cost is not None and cost.flops:
            work[kind.name, tuple(meta.shape for meta in kind.inputs)] += cost.flops * count
    return work


def operator_table(part: PartOutcome) -> Table:
    """One row per distinct op; FLOPs and bytes are of all its occurrences, unknown where it has no price.

    One op without a price makes the sums unknown.
    """
    ops = part.ops or ()
    priced = [(op, None if (cost := price(op.kind)) is None else cost.times(op.count)) for op in ops]
    table = table_of(
        f"Operators of {part.name}",
        priced,
        {
            Column("operator"): lambda row: row[0].kind.name,
            Column("count", Kind.COUNT): lambda row: row[0].count,
            Column("inputs"): lambda row: _shapes(row[0].kind.inputs),
            Column("outputs"): lambda row: _shapes(row[0].kind.outputs),
            Column("dtype"): lambda row: (row[0].kind.outputs or row[0].kind.inputs)[0].dtype,
            Column("FLOPs", Kind.FLOPS): lambda row: None if row[1] is None else row[1].flops,
            Column("bytes moved", Kind.BYTES): lambda row: None if row[1] is None else row[1].bytes_moved,
        },
    )
    known = [cost for _, cost in priced if cost is not None]
    total = sum(known, OpCost())
    sums = (total.flops, total.bytes_moved) if len(known) == len(ops) else (None, None)
    return replace(table, footer=("total", sum(op.count for op in ops), "", "", "", *sums))


def _shapes(metas: Sequence[TensorMeta]) -> str:
    return " ".join("x".join(map(str, meta.shape)) or "scalar" for meta in metas)


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
        _weighted(parts),
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
    checks = [check for check in Check if any(part.outcome(check).detail != _NOT_ASKED for part in parts)]
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


def _cell(outcome: CheckOutcome) -> str:
    """The verdict in one word, and for dynamic shapes what may vary."""
    if outcome.check is Check.DYNAMIC and outcome.verdict is Verdict.OK:
        return f"ok: {outcome.detail.removeprefix('may vary: ')}"
    return outcome.verdict.value


def _reasons(parts: Sequence[PartOutcome]) -> Table:
    refused = ((part.name, outcome) for part in parts for outcome in part.outcomes if _is_refusal(outcome))
    return table_of(
        "Why not",
        refused,
        {
            Column("part"): lambda row: row[0],
            Column("check"): lambda row: row[1].check.value,
            Column("verdict"): lambda row: row[1].verdict.value,
            Column("exception"): lambda row: row[1].error or "",
            Column("reason"): lambda row: row[1].reason or row[1].detail,
            Column("operator"): lambda row: row[1].operator or "",
            Column("where"): lambda row: row[1].site or "",
            Column("line"): lambda row: row[1].source_line or "",
            Column("remedy"): lambda row: row[1].remedy or "",
        },
    )


def _is_refusal(outcome: CheckOutcome) -> bool:
    """What failed, and what was not tried for a reason that is not given elsewhere."""
    if outcome.verdict is Verdict.SKIPPED:
        return outcome.remedy is not None
    return outcome.verdict is Verdict.FAILED


def _axes(parts: Sequence[PartOutcome]) -> Table:
    return table_of(
        "Which dimensions may vary",
        ((part.name, axis) for part in parts for axis in part.axes),
        {
            Column("part"): lambda row: row[0],
            Column("dimension"): lambda row: row[1].axis,
            Column("argument"): lambda row: row[1].argument,
            Column("size", Kind.COUNT): lambda row: row[1].size,
            Column("verdict"): lambda row: _MAY_VARY[row[1].verdict],
            Column("range"): lambda row: row[1].range,
            Column("fixed by"): lambda row: row[1].guard or "",
            Column("where"): lambda row: row[1].site or "",
            Column("line"): lambda row: row[1].source_line or "",
        },
    )


def _flops(flops: Sequence[PartFlops]) -> Table:
    return table_of(
        "FLOPs from three sources",
        flops,
        {
            Column("part"): lambda part: part.name,
            Column("exported", Kind.FLOPS): lambda part: part.exported,
            Column("traced", Kind.FLOPS): lambda part: part.traced,
            Column("eager, torch's counter", Kind.FLOPS): lambda part: part.eager,
            Column("bytes moved", Kind.BYTES): lambda part: part.bytes_moved,
            Column("agreement"): _agreement,
        },
    )


def _agreement(part: PartFlops) -> str:
    if part.causes:
        return "; ".join(part.causes)
    known = [figure for figure in (part.exported, part.traced, part.eager) if figure is not None]
    if part.exported is None or len(known) < 2:
        return "nothing to compare"
    return "equal to the FLOP"


def _parity(parts: Sequence[PartOutcome]) -> Table:
    weights = "the weights of the files" if any(part.weighted for part in parts) else "random weights"
    return table_of(
        f"onnxruntime against eager, {weights}",
        ((part.name, part.parity) for part in parts if part.parity is not None),
        {
            Column("part"): lambda row: row[0],
            Column("outputs", Kind.COUNT): lambda row: row[1].outputs,
            Column("largest value"): lambda row: f"{row[1].largest_value:.3g}",
            Column("largest difference"): lambda row: f"{row[1].max_abs_error:.1e}",
            Column("of the largest value"): lambda row: f"{row[1].max_rel_error:.1e}",
        },
    )


def _trials(parts: Sequence[PartOutcome]) -> list[tuple[str, CompileTrial]]:
    return [(part.name, trial) for part in parts for trial in part.compiled]


def _compiled(parts: Sequence[PartOutcome]) -> Table:
    """A row per part and mode; where only the default mode was tried, its name says nothing and is left out."""
    trials = _trials(parts)
    has_modes = any(trial.mode != "default" for _, trial in trials)
    columns = {Column("part"): _of_trial(lambda name, trial: name)}
    if has_modes:
        columns[Column("mode")] = _of_trial(lambda name, trial: trial.mode)
    columns |= {
        Column("graphs", Kind.COUNT): _of_figures(lambda compiled: compiled.graphs),
        Column("breaks", Kind.COUNT): _of_figures(lambda compiled: len(compiled.breaks)),
        Column("compile", Kind.SECONDS): _of_figures(lambda compiled: compiled.compile_seconds),
        Column("eager", Kind.SECONDS): _of_figures(lambda compiled: compiled.eager_seconds),
        Column("compiled", Kind.SECONDS): _of_figures(lambda compiled: compiled.compiled_seconds),
        Column("compiled of eager", Kind.RATIO): _of_figures(lambda compiled: compiled.compiled_of_eager),
        Column("runs", Kind.COUNT): _of_figures(lambda compiled: compiled.runs),
        Column("threads", Kind.COUNT): _of_figures(lambda compiled: compiled.threads),
    }
    if has_modes:
        columns[Column("autotuned", Kind.COUNT)] = _of_figures(lambda compiled: compiled.autotuned)
        columns[Column("remarks")] = _of_trial(lambda name, trial: "; ".join(trial.remarks))
    shown = [row for row in trials if has_modes or row[1].figures is not None]
    return table_of("torch.compile against eager, medians of one process", shown, columns)


def _of_trial(read: Callable[[str, CompileTrial], Cell]) -> Callable[[tuple[str, CompileTrial]], Cell]:
    return lambda row: read(*row)


def _of_figures(read: Callable[[CompileFigures], Cell]) -> Callable[[tuple[str, CompileTrial]], Cell]:
    return lambda row: None if row[1].figures is None else read(row[1].figures)


def _breaks(parts: Sequence[PartOutcome]) -> Table:
    """The same in every mode: dynamo decides on them before a backend sees the graph."""
    figures = {name: trial.figures for name, trial in _trials(parts) if trial.figures is not None}
    return Table(
        title="Where the compiled graph breaks",
        columns=tuple(map(Column, ("part", "where", "reason"))),
        rows=tuple(
            (name, graph_break.site, graph_break.reason)
            for name, compiled in figures.items()
            for graph_break in compiled.breaks
        ),
    )


def _weighted(parts: Sequence[PartOutcome]) -> Table:
    return table_of(
        "Files with weights, loaded again and run by themselves",
        ((part.name, check) for part in parts for check in part.weighted),
        {
            Column("part"): lambda row: row[0],
            Column("file"): lambda row: row[1].file,
            Column("size", Kind.BYTES): lambda row: row[1].file_bytes,
            Column("runtime"): lambda row: row[1].runtime,
            Column("outputs", Kind.COUNT): lambda row: row[1].parity.outputs,
            Column("largest value"): lambda row: f"{row[1].parity.largest_value:.3g}",
            Column("largest difference"): lambda row: f"{row[1].parity.max_abs_error:.1e}",
        },
    )


def _inputs(parts: Sequence[PartOutcome]) -> Table:
    return table_of(
        "What went in, and what was changed for it",
        parts,
        {
            Column("part"): lambda part: part.name,
            Column("module"): lambda part: ", ".join(part.wraps) if part.wraps != ("",) else "(root)",
            Column("phase"): lambda part: part.phase,
            Column("inputs"): lambda part: "; ".join(part.inputs),
            Column("adaptations"): lambda part: "; ".join(part.adaptations) or "none",
        },
    )


def _notes(parts: Sequence[PartOutcome], flops: Sequence[PartFlops]) -> Iterator[Note]:
    taken = "Each part is exported with the arguments of its last distinct call in the run"
    if any(part.weighted for part in parts):
        yield Note(f"{taken}; its files contain only its own weights.")
    else:
        yield Note(f"{taken}; no weights are made.")
        if any(part.parity is not None or part.compiled for part in parts):
            yield Note("A part gets random weights only where numbers are compared or timed.")
    for figure in flops:
        if not figure.is_explained:
            yield Note(f"{figure.name}: the sources differ and no cause is known.", Level.WARNING)
        for name, count in figure.unpriced.items():
            yield Note(f"{figure.name}: {count} ops {name} have no price and are left out of the total.", Level.WARNING)
