"""What has no price: listed by name, never silently zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_perf_opt.analyses.pricing import OpCost, flops_bound, price
from llm_perf_opt.callgraph.graph import CallGraph
from llm_perf_opt.callgraph.queries import count_kinds
from llm_perf_opt.callgraph.records import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpricedOp:
    """An op without a price, how often it ran, and the matrix FLOPs it hides at most if it is a matrix product."""

    name: str
    count: int
    flops_bound: int


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
    def flops_bound(self) -> int:
        """The most that the totals may lack."""
        return sum(op.flops_bound for op in self.unpriced)


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
            unpriced.append(UnpricedOp(name=kind.name, count=count, flops_bound=count * flops_bound(kind)))
        else:
            total += cost.times(count)
    return total, merged_unpriced(unpriced)


def merged_unpriced(found: Iterable[UnpricedOp]) -> tuple[UnpricedOp, ...]:
    """One entry per name, the largest bound first."""
    counts: Counter[str] = Counter()
    bounds: Counter[str] = Counter()
    for op in found:
        counts[op.name] += op.count
        bounds[op.name] += op.flops_bound
    return tuple(UnpricedOp(name=name, count=counts[name], flops_bound=bound) for name, bound in bounds.most_common())
