"""A cost of some ops as a sum over their kinds: how often each ran, at its price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.witness import Witness, worked_out
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price

_COSTS: Mapping[str, tuple[str, Callable[[OpCost], int]]] = {
    "FLOPs": ("FLOP", lambda cost: cost.flops),
    "MACs": ("FLOP", lambda cost: cost.flops),
    "bytes moved": ("B", lambda cost: cost.bytes_moved),
}
_MOST_KINDS = 12  # of one op that are listed one by one


def ops_witness(counts: Mapping[OpKind, int], figure: str) -> Witness | None:
    """How FLOPs, MACs or bytes moved come about; None for other figures, and where no op has a price."""
    if figure not in _COSTS:
        return None
    unit, cost_of = _COSTS[figure]
    by_op: dict[str, list[Witness]] = {}
    for kind, count in counts.items():
        if (cost := price(kind)) is not None and cost_of(cost):
            shapes = ", ".join(str(list(tensor.shape)) for tensor in kind.inputs)
            each = Witness(f"each, of {shapes}", cost_of(cost), unit, f"the price of {kind.name}")
            by_op.setdefault(kind.name, []).append(worked_out("times", shapes, [Witness("runs", count), each], unit))
    if not by_op:
        return None
    terms = [_sum_of_kinds(op, kinds, unit) for op, kinds in by_op.items()]
    total = worked_out("sum", "FLOPs" if unit == "FLOP" else figure, terms, unit)
    if figure != "MACs":
        return total
    return worked_out("whole", figure, [total, Witness("FLOPs of a multiply-add", 2)], "MAC")


def _sum_of_kinds(op: str, kinds: Sequence[Witness], unit: str) -> Witness:
    """The largest one by one, all others as one term."""
    largest = sorted(kinds, key=lambda kind: -kind.value)
    rest = largest[_MOST_KINDS:]
    others = Witness(
        f"{len(rest)} other kinds", sum(kind.value for kind in rest), unit, f"the prices of {op}, added up"
    )
    return worked_out("sum", op, [*largest[:_MOST_KINDS], *([others] if rest else [])], unit)
