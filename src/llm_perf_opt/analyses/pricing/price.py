"""The price of an op: by its own formula, by its class, or by the sum of the primitive ops it runs."""

from __future__ import annotations

from functools import cache

from llm_perf_opt.analyses.pricing import (
    attention,
    convolution,
    einsum,
    linear_algebra,
    matrix,
    memory,
    recurrent,
    spectral,
    vector,
)
from llm_perf_opt.analyses.pricing.classes import class_formulas
from llm_perf_opt.analyses.pricing.op_cost import FREE, Formula, OpCost
from llm_perf_opt.analyses.pricing.packet import packet_of
from llm_perf_opt.core.callgraph.records import OpKind


def price(kind: OpKind) -> OpCost | None:
    """What one run of `kind` costs, or None: unknown, which is never the same as free.

    An op whose every output is one of its inputs' memory and that writes nothing (`reshape` of contiguous data,
    `dropout` outside training) did nothing, whatever its name. Expanded inputs count as if they were stored: shapes are
    all there is.
    """
    if kind.output_aliases and not kind.mutates and min(kind.output_aliases) >= 0:
        return FREE
    cost = _by_formula(kind)
    return _sum_of_parts(kind) if cost is None else cost


def _by_formula(kind: OpKind) -> OpCost | None:
    """None without a formula, and where the record holds less than the formula needs.

    Some tracers see no arguments, and a file may come from anywhere: an op that its formula cannot read is then listed
    as unpriced instead of ending the analysis.
    """
    formula = formula_table().get(packet_of(kind.name))
    if formula is None:
        return None
    try:
        return formula(kind)
    except (LookupError, TypeError, ValueError):
        return None


@cache
def formula_table() -> dict[str, Formula]:
    """Every formula by packet name."""
    return merge_formulas(family_formulas(), class_formulas())


def family_formulas() -> dict[str, Formula]:
    """The formulas of ops that have one of their own, by packet name."""
    families = (matrix, einsum, convolution, attention, recurrent, spectral, linear_algebra, vector, memory)
    return merge_formulas(*(family.FORMULAS for family in families))


def merge_formulas(*tables: dict[str, Formula]) -> dict[str, Formula]:
    """One table of all; an op that two of them price raises, since one would silently win."""
    merged: dict[str, Formula] = {}
    for table in tables:
        if twice := merged.keys() & table.keys():
            raise ValueError(f"ops with two prices: {', '.join(sorted(twice))}")
        merged.update(table)
    return merged


def _sum_of_parts(kind: OpKind) -> OpCost | None:
    total = FREE
    for part in kind.parts:
        cost = price(part)
        if cost is None:
            return None
        total += cost
    return total if kind.parts else None
