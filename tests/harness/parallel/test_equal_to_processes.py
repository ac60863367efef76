"""One weightless rank does, sends and holds what a real process of the same plan does, sends and holds.

The real ranks run in processes of their own, joined by gloo. For every rank of every case op, bytes, ranks and module
of each collective are the same, in order, and the bytes of weights and cache.
"""

from __future__ import annotations

from itertools import zip_longest

import pytest

pytest.importorskip("transformers", minversion="5.20", reason="transformers spreads models over meshes from 5.20 on")

from .plan_cases import PLAN_CASES, PlanCase
from .real_ranks import SeenRank, run_real_ranks
from .weightless_ranks import run_weightless_rank


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_rank_of_every_plan_equals_the_real_process() -> None:
    """In one test: starting the processes takes longer than all cases."""
    real = run_real_ranks(PLAN_CASES)
    _agrees_with_arithmetic(real["llama tp2"][1])
    assert {case.name: found for case in PLAN_CASES if (found := _differences(case, real[case.name]))} == {}


def _differences(case: PlanCase, ranks: list[SeenRank]) -> list[str]:
    found = []
    for rank, process in enumerate(ranks):
        assert process.prefill, "a plan without a collective shows nothing"
        ours = run_weightless_rank(case, rank, process.routing)
        for phase in ("prefill", "decode"):
            pairs = zip_longest(getattr(ours, phase), getattr(process, phase))
            found += [f"rank {rank} {phase}: {mine}, really {its}" for mine, its in pairs if mine != its]
        for held in ("weight_bytes", "cache_bytes"):
            if getattr(ours, held) != getattr(process, held):
                found.append(f"rank {rank}: {held} {getattr(ours, held)}, really {getattr(process, held)}")
    return found


def _agrees_with_arithmetic(rank: SeenRank) -> None:
    """What the process says of itself, worked out by hand: 64 wide, 24 tokens, bfloat16, 3 layers, 4 key heads of 8."""
    reduced = [seen.payload_bytes for seen in rank.prefill if "all" in seen.op and "reduce" in seen.op]
    assert reduced == [24 * 64 * 2] * (1 + 2 * 3)  # the embedding, then attention and MLP of each layer
    assert rank.prefill[-1].payload_bytes == 24 * 256 * 2  # logits, gathered
    attention = 64 * 64 * 2 + 2 * 64 * 32  # q and o; k and v have half the heads
    layer = attention + 3 * 64 * 176
    assert rank.weight_bytes == 2 * ((3 * layer + 2 * 256 * 64) // 2 + 7 * 64)  # 7 norms are on every rank
    assert rank.cache_bytes == 2 * 3 * 2 * (32 // 2) * 25
