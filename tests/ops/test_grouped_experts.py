"""How many experts a batch touches: closed forms against draws of a seeded generator."""

from __future__ import annotations

import random

import pytest

from llm_perf_opt.costs.necessary.expert_blocks import BALANCED, FEWEST, UNIFORM, distinct_experts
from llm_perf_opt.ops.grouped_experts import expected_on_fullest


def test_one_token_of_a_model_with_48_experts_on_four_ranks() -> None:
    """5 of 48: a rank with 12 of them reads 5 / 4, and four ranks together 5."""
    assert distinct_experts(UNIFORM, 12, 5, 1, 0, ranks=4, ranks_alike=4) == pytest.approx(1.25)
    assert distinct_experts(FEWEST, 12, 5, 1, 0, ranks=4, ranks_alike=4) == 0
    assert distinct_experts(FEWEST, 12, 40, 1, 0, ranks=4, ranks_alike=4) == 40 - 36
    assert distinct_experts(BALANCED, 12, 5, 3, 0, ranks=4, ranks_alike=4) == 15 / 4


def test_ranks_with_tokens_of_their_own_send_them_all() -> None:
    """2 tokens on each of 4 ranks are 8: 48 x (1 - (43 / 48) ** 8) over four ranks."""
    found = distinct_experts(UNIFORM, 12, 5, 2, 0, ranks=4)
    assert found == pytest.approx(48 * (1 - (43 / 48) ** 8) / 4)


def test_a_token_that_half_of_the_ranks_hold_counts_half() -> None:
    assert distinct_experts(UNIFORM, 4, 2, 1, 0, ranks=2, ranks_alike=4) == pytest.approx(2 / 2 / 2)


def test_two_of_four_experts_on_two_ranks_by_hand() -> None:
    """Of 6 pairs 2 are on one rank and 4 on both: (2 x 2 + 4 x 1) / 6."""
    assert expected_on_fullest(2, 2, 2) == pytest.approx(8 / 6)
    assert expected_on_fullest(2, 2, 0) == 0
    assert expected_on_fullest(2, 2, 4) == 2
    assert expected_on_fullest(2, 2, 1.5) == pytest.approx((1 + 8 / 6) / 2)


@pytest.mark.parametrize(("experts", "ranks", "chosen", "tokens"), [(12, 4, 5, 1), (8, 8, 6, 3), (32, 8, 8, 16)])
def test_the_rank_with_the_most_is_what_many_draws_give(experts: int, ranks: int, chosen: int, tokens: int) -> None:
    draw, drawn = random.Random(7), 2000
    most = each = 0
    for _ in range(drawn):
        touched = {expert for _ in range(tokens) for expert in draw.sample(range(experts * ranks), chosen)}
        on_ranks = [sum(expert // experts == rank for expert in touched) for rank in range(ranks)]
        most, each = most + max(on_ranks), each + on_ranks[0]
    expected = distinct_experts(UNIFORM, experts, chosen, tokens, 0, ranks=ranks, ranks_alike=ranks)
    assert each / drawn == pytest.approx(expected, rel=0.05)
    assert most / drawn == pytest.approx(expected_on_fullest(experts, ranks, expected * ranks), rel=0.03)
