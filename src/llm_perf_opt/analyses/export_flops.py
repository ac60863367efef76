"""The FLOPs of a part from three sources, and why they differ where they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.analyses.call_costs import cost_of_kinds
from llm_perf_opt.analyses.pricing import price
from llm_perf_opt.callgraph.records import OpKind
from llm_perf_opt.export_outcome import PartOutcome


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
    if exported is None or traced is None or exported == seen:
        return []
    if outcome.adaptation:
        return [(f"the trace ran the module as it is: {outcome.adaptation}", True)]
    only_traced, only_exported = _surplus(traced, _kinds(outcome)), _surplus(_kinds(outcome), traced)
    if only_traced and not only_exported:
        return [(f"folded into constants or never used, so not in the graph: {', '.join(only_traced)}", True)]
    if only_traced and only_exported:
        return [(f"decomposed on export: {', '.join(only_traced)} into {', '.join(only_exported)}", True)]
    return [("no cause is known", False)]


def _against_eager(outcome: PartOutcome, exported: int | None) -> list[tuple[str, bool]]:
    if exported is None or outcome.eager_flops is None:
        return [] if outcome.eager_unknown is None or exported is None else [(f"eager: {outcome.eager_unknown}", True)]
    if exported == outcome.eager_flops:
        return []
    if outcome.eager_unknown is not None:
        return [(f"eager: {outcome.eager_unknown}", True)]
    return [("eager: no cause is known", False)]


def _surplus(ours: dict[OpKind, int], theirs: dict[OpKind, int]) -> list[str]:
    """Names of ops with FLOPs of which `ours` has more, shape by shape."""
    more = _work(ours)
    more.subtract(_work(theirs))
    return sorted({name for (name, _), flops in more.items() if flops > 0})


def _work(kinds: dict[OpKind, int]) -> Counter[tuple[str, tuple[tuple[int, ...], ...]]]:
    work: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = Counter()
    for kind, count in kinds.items():
        cost = price(kind)
        if cost is not None and cost.flops:
            work[kind.name, tuple(meta.shape for meta in kind.inputs)] += cost.flops * count
    return work
