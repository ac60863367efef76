"""What has no price: listed by name, never silently zero. A sum with an unknown term is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import count_kinds
from llm_perf_opt.core.callgraph.records import OpKind
from llm_perf_opt.core.units import format_count, format_flops
from llm_perf_opt.ops.cost import OpCost
from llm_perf_opt.ops.table import price
from llm_perf_opt.ops.unpriced import flops_bound

Number = TypeVar("Number", int, float)


def known_sum(values: Iterable[Number | None], empty: Number | None = None) -> Number | None:
    """The sum; unknown as soon as one part is. `empty` is the sum of nothing at all, unknown by default."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    if not listed:
        return empty
    return sum(known) if len(known) == len(listed) else None


def counted_or_unknown(counted: int | None, unpriced_ops: int | None) -> int | None:
    """A sum over the ops that have a price; unknown where others ran and it is zero: their work may be anything."""
    return None if not counted and unpriced_ops else counted


def priced_sum(values: Iterable[int | None]) -> int | None:
    """Of such sums: what is unknown leaves a lower bound, and nothing known where the others add up to zero."""
    listed = list(values)
    known = sum(value for value in listed if value is not None)
    return None if None in listed and not known else known


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpricedOp:
    """An op without a price, how often it ran, and the matrix FLOPs it hides at most; None where no bound is known."""

    name: str
    count: int
    flops_bound: int | None

    @property
    def sentence(self) -> str:
        """What a report says of it."""
        bound = self.flops_bound
        hidden = "and nothing bounds what they hide" if bound is None else f"at most {format_flops(bound)}"
        return f"{self.name} has no price and is in no total: {format_count(self.count)} ops, {hidden}."


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCoverage:
    """How many ops ran, and those among them that are in no total."""

    ops: int
    unpriced: tuple[UnpricedOp, ...]

    @property
    def unpriced_ops(self) -> int:
        """How many ops ran without a price."""
        return sum(op.count for op in self.unpriced)

    @property
    def priced_ops(self) -> int:
        """How many ops are in the totals."""
        return self.ops - self.unpriced_ops

    @property
    def flops_bound(self) -> int | None:
        """The most that the totals may lack; None where one op has no bound."""
        return known_sum(op.flops_bound for op in self.unpriced) if self.unpriced else 0


def price_coverage(graph: CallGraph) -> PriceCoverage:
    """The coverage of a whole graph."""
    counts = count_kinds(graph)
    _, unpriced = priced_total(counts)
    return PriceCoverage(ops=sum(counts.values()), unpriced=unpriced)


def priced_total(counts: Mapping[OpKind, int]) -> tuple[OpCost, tuple[UnpricedOp, ...]]:
    """The cost of all ops that have a price, and those that have none."""
    total, unpriced = OpCost(), []
    for kind, count in counts.items():
        cost = price(kind)
        if cost is None:
            bound = flops_bound(kind)
            hidden = None if bound is None else count * bound
            unpriced.append(UnpricedOp(name=kind.name, count=count, flops_bound=hidden))
        else:
            total += cost.times(count)
    return total, merged_unpriced(unpriced)


def merged_unpriced(unpriced: Iterable[UnpricedOp]) -> tuple[UnpricedOp, ...]:
    """One entry per name, those without a bound first, then the largest bound."""
    by_name: dict[str, list[UnpricedOp]] = {}
    for op in unpriced:
        by_name.setdefault(op.name, []).append(op)
    merged = (
        UnpricedOp(name=name, count=sum(op.count for op in ops), flops_bound=known_sum(op.flops_bound for op in ops))
        for name, ops in by_name.items()
    )
    return tuple(sorted(merged, key=lambda op: -(math.inf if op.flops_bound is None else op.flops_bound)))
