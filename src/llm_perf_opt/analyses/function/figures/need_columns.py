"""Necessary work at many points at once; experts that routers touch are counted by the formula of their policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.analyses.function.columns import Column, Evaluation
from llm_perf_opt.analyses.function.figures.needs import ExpertForms, NecessaryForms, NeedForms
from llm_perf_opt.analyses.function.form import Form
from llm_perf_opt.analyses.necessary.expert_blocks import distinct_experts

Floats = NDArray[np.float64]
_SMALL = 2**56  # more than a hundred of these stay within int64


def must_read_bytes(needs: NecessaryForms, policy: str, at: Evaluation) -> Column:
    """Bytes that a stage must read, experts by the routing policy included."""
    assert needs.bytes is not None
    if not needs.experts:
        return at.of(needs.bytes)
    found: dict[ExpertForms, Floats] = {}
    total = np.zeros(at.size)
    for block in needs.experts:
        if block not in found:
            found[block] = _distinct(block, policy, at) * block.bytes_each
        total += found[block]
    return sum_of([at.of(needs.bytes), np.rint(total).astype(np.int64)])


def necessary_column(name: str, needs: NeedForms, at: Evaluation) -> Column:
    """`necessary_flops` or `necessary_bytes` of all stages together; None where that is not known."""
    assert needs.necessary is not None
    stages = list(needs.necessary.values())
    if not stages or (name == "necessary_bytes" and any(stage.bytes is None for stage in stages)):
        return np.full(at.size, None, dtype=object)
    if name == "necessary_bytes":
        return sum_of([must_read_bytes(stage, needs.policy, at) for stage in stages])
    flops = [form for stage in stages for form in stage.flops_by_dtype.values()]
    return at.of(sum(flops, Form()))


def sum_of(columns: Sequence[Column]) -> Column:
    """Columns added up, exact: int64 where no sum can leave it."""
    is_small = all(column.dtype == np.int64 and np.abs(column).max(initial=0) < _SMALL for column in columns)
    parts = columns if is_small else [column.astype(object) for column in columns]
    return reduce(np.add, parts)


def _distinct(block: ExpertForms, policy: str, at: Evaluation) -> Floats:
    tokens, places = np.unique(at.of(block.tokens), return_inverse=True)
    spread = {"ranks": block.ranks, "ranks_alike": block.ranks_alike}
    known = [distinct_experts(policy, block.experts, block.chosen, int(count), 0, **spread) for count in tokens]
    return np.asarray(known, dtype=np.float64)[places]
