"""A dispatch mode of the caller sees each op first: what it takes apart is listed so, and the trace says why."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

import llm_perf_opt as lpo


def test_a_trace_inside_a_flop_counter_says_that_ops_may_be_taken_apart() -> None:
    """The counter decomposes an addmm-free linear on three axes; outside it the layer is one op."""
    module, given = torch.nn.Linear(4, 4), (torch.zeros(2, 3, 4),)
    (plain,) = lpo.trace(module, given).graphs
    with FlopCounterMode(display=False):
        (inside,) = lpo.trace(module, given).graphs
    assert plain.notes == ()
    assert plain.coverage is not None
    assert inside.coverage is not None
    assert inside.coverage.ops > plain.coverage.ops == 1
    assert [note for note in inside.notes if note.startswith("FlopCounterMode was on")]
