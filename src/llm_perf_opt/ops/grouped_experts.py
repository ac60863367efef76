"""Experts as one grouped matmul: rows sorted by expert, one weight per expert, and how many experts get rows."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, partial
from math import comb

from llm_perf_opt.core.callgraph.records import OpKind, TensorMeta
from llm_perf_opt.core.source_figures import WorkFamily
from llm_perf_opt.core.tensor_formats import tensor_bytes
from llm_perf_opt.ops.cost import OpCost, bytes_in_and_out, operand
from llm_perf_opt.ops.matmuls import contraction
from llm_perf_opt.ops.op import Op, reads_all, registered


def expected_distinct(experts: int, chosen: int, tokens: int) -> float:
    """Expected number of experts with at least one token, each of `tokens` drawing `chosen` of `experts` uniformly.

    `experts * (1 - (1 - chosen / experts) ** tokens)`: 8 of 128 and 8 tokens touch 51.6.
    """
    if experts <= 0 or chosen >= experts:
        return float(max(experts, 0)) if tokens else 0.0
    return experts * (1 - (1 - chosen / experts) ** tokens)


def expected_on_fullest(experts: int, ranks: int, distinct: float) -> float:
    """Expected number on the rank that has the most of `distinct` experts, drawn from `ranks` with `experts` each.

    5 of 48 experts on 4 ranks: each rank has 1.25, the one with the most 2.38. A `distinct` that is an expectation
    itself lies on the line between the whole numbers next to it.
    """
    below, part = divmod(distinct, 1)
    low = _on_fullest(experts, ranks, int(below))
    return low if not part else low + part * (_on_fullest(experts, ranks, int(below) + 1) - low)


@cache
def _on_fullest(experts: int, ranks: int, drawn: int) -> float:
    """The sum over m of P(the most > m). Polynomials are packed into integers, as digits that cannot overflow."""
    bits = experts * ranks + 1  # of a digit: all subsets together are 2 ** (experts * ranks)
    every, fewest = comb(experts * ranks, drawn), -(-drawn // ranks)
    expected = float(fewest)
    for most in range(fewest, experts):
        of_one_rank = sum(comb(experts, count) << bits * count for count in range(most + 1))
        within = of_one_rank**ranks >> bits * drawn & (1 << bits) - 1  # ways in which no rank has more
        if within == every:
            break
        expected += 1 - within / every
    return expected


def touched_experts(experts: int, chosen: int, tokens: int) -> int:
    """How many experts get rows under uniform routing: the expected number, rounded, at least one token's."""
    return min(experts, max(chosen, round(expected_distinct(experts, chosen, tokens))))


@cache
def tokens_for_all(experts: int, chosen: int) -> int:
    """Tokens from which on every expert gets rows under uniform routing."""
    return bisect_left(range(2**31), True, key=lambda tokens: touched_experts(experts, chosen, tokens) >= experts)


def grouped_matmul(kind: OpKind) -> OpCost:
    """Rows sorted by group, one weight per group: each row meets one weight, and only groups with rows are read.

    Two 2-d operands split the summed dimension between the groups instead, and the output gains a group dimension.
    Rows beyond the last offset are priced too: offsets are values, and a shape is all there is.
    """
    left, right = operand(kind, 0, "self", "input"), operand(kind, 1, "mat2", "weight")
    if len(left.shape) == 2 and len(right.shape) == 2:
        macs = left.shape[0] * left.shape[1] * right.shape[1]
        return OpCost(flops=2 * macs, bytes_moved=bytes_in_and_out(kind))
    cost = contraction(kind, left.shape[-1])
    return cost + OpCost(bytes_moved=-sum(tensor_bytes(meta) - read_of_stack(kind, meta) for meta in (left, right)))


def read_of_stack(kind: OpKind, operand_meta: TensorMeta) -> int:
    """What a grouped matmul reads of an operand: all of a matrix, and of a stack the groups that have rows."""
    stack_bytes = tensor_bytes(operand_meta)
    if len(operand_meta.shape) != 3:
        return stack_bytes
    groups = operand_meta.shape[0]
    return stack_bytes * min(groups_used(kind), groups) // max(groups, 1)


def groups_used(kind: OpKind) -> int:
    """How many groups of a grouped matmul have rows: as recorded, or as many as this many rows can touch at most."""
    left, right = operand(kind, 0, "self", "input"), operand(kind, 1, "mat2", "weight")
    recorded = kind.arguments.get("groups_used")
    rows = left.shape[0] if len(left.shape) == 2 else right.shape[-1]
    return recorded if isinstance(recorded, int) else rows


def reads_used_groups(kind: OpKind) -> list[int]:
    """Of both operands the groups that have rows, and all of the rest."""
    return [*(read_of_stack(kind, meta) for meta in kind.inputs[:2]), *reads_all(kind)[2:]]


_grouped = partial(Op, family=WorkFamily.GROUPED, price=grouped_matmul, reads=reads_used_groups, turned_weight=1)

OPS = registered({"_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 transformers.grouped_mm_fallback": _grouped()})
