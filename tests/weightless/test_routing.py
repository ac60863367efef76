"""Routing policies: k distinct experts per row, and the loads each policy promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.models.deepseek_ocr.configuration import DecoderConfig
from llm_perf_opt.models.deepseek_ocr.moe import DeepseekV2MoE
from llm_perf_opt.weightless import (
    BalancedRouting,
    Engine,
    Limits,
    OneExpertRouting,
    RandomRouting,
    ReplayRouting,
    UniformRouting,
    routing_policy,
)
from llm_perf_opt.weightless.ghost import choice_counts, choice_of
from llm_perf_opt.weightless.routing import EvenOverRanks
from llm_perf_opt.weightless.spec import contiguous_spec

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24)).flatmap(
    lambda size: st.tuples(st.just(size[0]), st.just(size[1]), st.integers(1, size[1]))
)


def loads(chosen: torch.Tensor, experts: int) -> list[int]:
    return torch.bincount(chosen.reshape(-1), minlength=experts).tolist()


@given(SIZES)
def test_every_policy_gives_each_row_k_distinct_experts(size: tuple[int, int, int]) -> None:
    rows, experts, k = size
    for policy in (UniformRouting(), BalancedRouting(), OneExpertRouting(), RandomRouting(1)):
        chosen = policy.choose(rows, experts, k, 0)
        assert chosen.shape == (rows, k)
        assert all(len(set(row)) == k and min(row) >= 0 and max(row) < experts for row in chosen.tolist())


@given(SIZES, st.sampled_from([1, 2, 3]))
def test_counts_are_what_counting_the_choices_gives(size: tuple[int, int, int], ranks: int) -> None:
    rows, experts, k = size
    recorded = ReplayRouting([BalancedRouting().counts(rows, experts, k, 0).tolist()])
    for make in (UniformRouting, BalancedRouting, OneExpertRouting, lambda: RandomRouting(1), lambda: recorded):
        chosen = EvenOverRanks(make(), ranks).choose(rows, experts, k, 0)
        assert EvenOverRanks(make(), ranks).counts(rows, experts, k, 0).tolist() == loads(chosen, experts)


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(real_integer=200), Limits(routing=100, real_integer=200), Limits(routing=100)]
)
def test_experts_get_every_row_however_large_the_choice_is(limits: Limits) -> None:
    """40 tokens take 3 of 8 experts: 120 rows, 15 for each, whether indices and the one-hot table are held or not."""
    config = DecoderConfig(hidden_size=4, moe_intermediate_size=2, n_routed_experts=8, num_experts_per_tok=3)
    rows: list[int] = []
    engine = Engine(limits=limits)
    with engine:
        layer = DeepseekV2MoE(config)
        for expert in layer.experts:
            expert.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[0]))
        assert layer(engine.ghost(2, 20, 4)).shape == (2, 20, 4)
    assert rows == [15] * 8


@given(SIZES)
def test_balanced_loads_differ_by_at_most_one(size: tuple[int, int, int]) -> None:
    rows, experts, k = size
    counts = loads(BalancedRouting().choose(rows, experts, k, 0), experts)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("rows", "experts", "k", "touched"),
    [(1, 128, 8, 8), (8, 128, 8, 52), (8, 64, 6, 35), (32, 128, 8, 112), (924, 64, 6, 64), (5, 4, 4, 4)],
)
def test_uniform_routing_touches_the_expected_number_of_experts(rows: int, experts: int, k: int, touched: int) -> None:
    """`experts * (1 - (1 - k / experts) ** rows)`, rounded: 51.6 for 8 rows that take 8 of 128."""
    counts = loads(UniformRouting().choose(rows, experts, k, 0), experts)
    assert sum(count > 0 for count in counts) == touched
    assert max(counts) - min(count for count in counts if count) <= 1


def test_random_routing_touches_about_as_many_as_uniform_routing() -> None:
    drawn = [sum(count > 0 for count in loads(RandomRouting(seed).choose(8, 128, 8, 0), 128)) for seed in range(200)]
    assert sum(drawn) / len(drawn) == pytest.approx(51.62, abs=0.7)


@given(SIZES, st.integers(0, 2**31))
def test_replay_gives_exactly_the_recorded_counts(size: tuple[int, int, int], seed: int) -> None:
    rows, experts, k = size
    recorded = loads(RandomRouting(seed).choose(rows, experts, k, 0), experts)
    chosen = ReplayRouting([recorded]).choose(rows, experts, k, 0)
    assert loads(chosen, experts) == recorded
    assert all(len(set(row)) == k for row in chosen.tolist())


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = RandomRouting(5), RandomRouting(5)
    assert all(torch.equal(first.choose(9, 8, 2, i), second.choose(9, 8, 2, i)) for i in range(3))


def test_counts_of_another_run_are_refused() -> None:
    replay = ReplayRouting([[2, 2, 0, 0]])
    with pytest.raises(PerfOptError, match="do not fit this run"):
        replay.choose(3, 4, 2, 0)
    with pytest.raises(PerfOptError, match="1 entries"):
        replay.choose(2, 4, 2, 1)


@pytest.mark.parametrize("text", ["", "balance", "random:x", "one:2"])
def test_an_unknown_policy_names_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match="balanced, one, random:SEED"):
        routing_policy(text)


def test_experts_on_several_ranks_are_chosen_rank_by_rank() -> None:
    """Sixteen rows of which each takes 8 of 256 touch 102 experts; on 8 ranks with 32 each, 12 or 13 of every rank."""
    from collections import Counter

    from llm_perf_opt.weightless.routing import EvenOverRanks, UniformRouting

    chosen = EvenOverRanks(UniformRouting(), 8).choose(16, 256, 8, 0)
    experts = {int(expert) for expert in chosen.reshape(-1)}
    assert len(experts) == len({int(expert) for expert in UniformRouting().choose(16, 256, 8, 0).reshape(-1)})
    assert set(Counter(expert // 32 for expert in experts).values()) <= {12, 13}
    assert sorted(Counter(int(expert) // 32 for expert in chosen[:2].reshape(-1)).values()) == [2] * 8
    assert [len(set(row.tolist())) for row in chosen] == [8] * 16
    assert (
        EvenOverRanks(UniformRouting(), 8).choose(4, 6, 2, 0).tolist() == UniformRouting().choose(4, 6, 2, 0).tolist()
    )


@pytest.mark.parametrize("tokens", [1, 3, 50])
@pytest.mark.parametrize("count", ["histc", "bincount"])
def test_rows_of_a_choice_too_large_to_be_held_are_those_of_a_held_one(tokens: int, count: str) -> None:
    """Sorted by expert and counted, as code with grouped matmuls does it: in ghosts and in real indices alike."""

    def rows_of_experts(limits: Limits) -> list[int]:
        with Engine(limits=limits):
            chosen = torch.nn.Linear(8, 24)(torch.zeros(tokens, 8)).topk(4, dim=-1).indices
            in_order, order = torch.sort(chosen.reshape(-1))
            assert in_order.shape == order.shape == (4 * tokens,)
            if count == "bincount":
                return torch.bincount(in_order, minlength=24).tolist()
            return torch.histc(in_order.int(), bins=24, min=0, max=23).tolist()

    held = rows_of_experts(Limits())
    assert sum(held) == 4 * tokens
    assert rows_of_experts(Limits(routing=2)) == held
    assert rows_of_experts(Limits(routing=2, real_integer=2)) == held


@given(SIZES)
def test_values_of_a_choice_too_large_to_be_held_are_distinct_in_each_row(size: tuple[int, int, int]) -> None:
    rows, experts, k = size
    counts = UniformRouting().counts(rows, experts, k, 0)
    chosen = choice_of(counts, contiguous_spec((rows, k), torch.long))
    assert loads(chosen, experts) == counts.tolist()
    assert all(len(set(row)) == k for row in chosen.tolist())


def test_a_one_hot_table_is_no_choice_though_every_expert_is_chosen() -> None:
    """Four of four experts: as many ones in the table as it has elements."""
    with Engine(limits=Limits(routing=2, real_integer=2)):
        chosen = torch.nn.Linear(8, 4)(torch.zeros(5, 8)).topk(4, dim=-1).indices
        table = chosen.new_zeros((5, 4)).scatter_(1, chosen.view(5, 4), 1)
        assert choice_counts(chosen) is not None
        assert choice_counts(table) is None
        assert table.sum(0).tolist() == [5, 5, 5, 5]
