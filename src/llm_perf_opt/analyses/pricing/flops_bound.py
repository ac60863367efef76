"""How much matrix work an op without a price may hide."""

from __future__ import annotations

import math

from llm_perf_opt.analyses.pricing.op_cost import elements, elements_of
from llm_perf_opt.callgraph.records import OpKind


def flops_bound(kind: OpKind) -> int:
    """An upper bound of the matrix FLOPs of an unknown op, if it is one product of its two largest inputs.

    By the Loomis-Whitney inequality, contracting A and B into C takes at most `sqrt(|A| |B| |C|)` multiply-adds: each
    is a point in a box, and A, B and C are the shadows of all points on three of its faces. `mm` reaches the bound, a
    batch of b products stays below it by `sqrt(b)`. A single input is taken as both factors, an op without outputs as
    writing into its largest input.

    It does not bound a convolution, which reuses each input at every kernel position, nor a chain of products such as
    attention; those families are priced by name.
    """
    factors = sorted((elements(meta) for meta in kind.inputs), reverse=True)[:2]
    result = elements_of(kind.outputs) if kind.outputs else max(factors, default=0)
    left, right = factors[0] if factors else 1, factors[-1] if factors else 1
    square = left * right * result
    return 2 * (math.isqrt(square - 1) + 1 if square else 0)
