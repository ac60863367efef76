"""The FLOPs of an exported part from three sources, why they differ, and its operators with shapes and prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.analyses.cost.module_costs import cost_of_kinds
from llm_perf_opt.analyses.pricing import OpCost, price
from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.export_outcome import GraphOp, PartOutcome
from llm_perf_opt.core.report import Cell, Column, Kind, Table


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
    """Hold the sources against each other; `traced` are the ops of the call in the trace."""
    cost, unpriced = (None, {}) if outcome.ops is None else cost_of_kinds(_kinds(outcome))
    seen = None if traced is None else cost_of_kinds(traced)[0].flops
    exported = None if cost is None else cost.flops
    causes = (*_against_trace(outcome, exported, traced, seen), *_against_eager(outcome, exported))
    return PartFlops(
        name=outcome.name,
        exported=exported,
        traced=seen,
        eager=outcome.eager_flops,
        bytes_moved=None if cost is None else cost.bytes_moved,
        unpriced=unpriced,
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
    told = f"decomposed on export: {', '.join(sorted(before))} into {', '.join(sorted(after))}"
    return f"{told}; no price for {', '.join(sorted(gone | new))}", True


def _unexplained(traced: dict[OpKind, int], exported: dict[OpKind, int]) -> str:
    sides = {"the trace": _work_beyond(traced, exported), "the graph": _work_beyond(exported, traced)}
    told = (
        f"only in {side} {', '.join(f'{name} with {flops:,} FLOPs' for name, flops in work.items())}"
        for side, work in sides.items()
        if work
    )
    return f"no cause is known: {'; '.join(told)}"


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
    costs = [price(op.kind) for op in ops]
    known = sum((cost.times(op.count) for cost, op in zip(costs, ops, strict=True) if cost is not None), OpCost())
    total = None if None in costs else known
    return Table(
        title=f"Operators of {part.name}",
        columns=(
            Column("operator"),
            Column("count", Kind.COUNT),
            Column("inputs"),
            Column("outputs"),
            Column("dtype"),
            Column("FLOPs", Kind.FLOPS),
            Column("bytes moved", Kind.BYTES),
        ),
        rows=tuple(_row(op) for op in ops),
        footer=(
            "total",
            sum(op.count for op in ops),
            "",
            "",
            "",
            None if total is None else total.flops,
            None if total is None else total.bytes_moved,
        ),
    )


def _row(op: GraphOp) -> tuple[Cell, ...]:
    cost = price(op.kind)
    return (
        op.kind.name,
        op.count,
        _shapes(op.kind.inputs),
        _shapes(op.kind.outputs),
        (op.kind.outputs or op.kind.inputs)[0].dtype,
        None if cost is None else cost.flops * op.count,
        None if cost is None else cost.bytes_moved * op.count,
    )


def _shapes(metas: Sequence[TensorMeta]) -> str:
    return " ".join("x".join(map(str, meta.shape)) or "scalar" for meta in metas)
