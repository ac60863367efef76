"""How many tokens sequences get: one, as drafts are accepted, or as recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.serving.vllm.inside.sampling import ChanceOfDrafts, OneToken, RecordedTokens, chosen_sampler

REQUESTS = {"a": SimpleNamespace(is_prefill_chunk=False), "b": SimpleNamespace(is_prefill_chunk=True)}


def step(drafts: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_scheduled_tokens={"a": 1 + drafts, "b": 64},
        scheduled_spec_decode_tokens={"a": [1] * drafts} if drafts else {},
    )


def counts(tokens: list[list[int]]) -> list[int]:
    return [len(one) for one in tokens]


def test_a_chunk_that_does_not_end_its_prompt_gets_no_token() -> None:
    assert counts(OneToken().sampled(step(), REQUESTS)) == [1, 0]


@pytest.mark.parametrize(("acceptance", "tokens"), [(0.0, 1), (1.0, 4)])
def test_drafts_are_all_wrong_or_all_right_at_the_ends(acceptance: float, tokens: int) -> None:
    assert counts(ChanceOfDrafts(3, acceptance).sampled(step(3), REQUESTS)) == [tokens, 0]


def test_accepted_drafts_have_the_mean_of_a_run_that_ends_at_the_first_wrong_one() -> None:
    """1 + p + p^2 + p^3 at p = 0.7 is 2.533."""
    sampler = ChanceOfDrafts(3, 0.7)
    found = [counts(sampler.sampled(step(3), REQUESTS))[0] for _ in range(20_000)]
    assert sum(found) / len(found) == pytest.approx(2.533, abs=0.03)
    assert sampler.drafted() == (["a", "b"], [[7] * 3, [7] * 3])


def test_a_recorded_run_is_repeated() -> None:
    sampler = RecordedTokens([((2, 0), (3, 1))])
    assert counts(sampler.sampled(step(3), REQUESTS)) == [2, 0]
    assert counts(sampler.drafted()[1]) == [3, 1]


def test_speculation_without_a_rate_of_acceptance_is_refused() -> None:
    assert isinstance(chosen_sampler(None, None), OneToken)
    with pytest.raises(PerfOptError, match="speculates"):
        chosen_sampler(SimpleNamespace(num_speculative_tokens=3), None)
