"""Two traces of one model under two plans: every difference comes from the plan, and no other is blamed on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.comparisons import compare
from llm_perf_opt.comparisons.causes import Comparison
from llm_perf_opt.comparisons.difference import Aspect
from tests.api.tiny_folders import TOKENS, llama_folder, mixtral_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {"llama": llama_folder(place / "llama"), "mixtral": mixtral_folder(place / "mixtral")}


def compared(left: lpo.Trace, right: lpo.Trace) -> list[Comparison]:
    return [compare(one, other) for one, other in zip(left.graphs, right.graphs, strict=True)]


def causes(found: list[Comparison]) -> Counter[str | None]:
    return Counter(finding.cause for one in found for finding in one.findings)


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        ("llama", {}, {"tp": 2}),
        ("llama", {"tp": 2}, {}),
        ("llama", {}, {"fsdp": 2}),
        ("llama", {}, {"pp": 2, "rank": 0}),
        ("llama", {"pp": 2, "rank": 0}, {"pp": 2, "rank": 1}),
        ("mixtral", {}, {"tp": 2}),
        ("mixtral", {"tp": 2}, {"tp": 2, "ep": 2}),
    ],
)
def test_plans_alone_differ(
    model: str, first: dict[str, Any], second: dict[str, Any], folders: dict[str, Path]
) -> None:
    left, right = (lpo.trace(folders[model], prompt_tokens=TOKENS, **plan) for plan in (first, second))
    found = causes(compared(left, right))
    assert set(found) == {"parallel plan"}
    assert found.total() > 10


def test_two_equal_ranks_do_not_differ(folders: dict[str, Path]) -> None:
    left, right = (lpo.trace(folders["llama"], prompt_tokens=TOKENS, tp=2, rank=rank) for rank in (0, 1))
    assert {finding.difference.aspect for one in compared(left, right) for finding in one.findings} <= {Aspect.OPS}


def test_another_vocabulary_is_not_the_plan(folders: dict[str, Path], tmp_path: Path) -> None:
    """A rank of two holds 128 of 256 words; 100 of them cannot be its share."""
    smaller = llama_folder(tmp_path / "llama", vocab_size=200)
    found = compared(lpo.trace(folders["llama"], prompt_tokens=TOKENS), lpo.trace(smaller, prompt_tokens=TOKENS, tp=2))
    of_words = [finding for one in found for finding in one.findings if finding.difference.aspect is Aspect.WEIGHTS]
    blamed = {finding.difference.path: finding.cause for finding in of_words}
    assert blamed["lm_head"] is None
    assert blamed["model.embed_tokens"] is None
    assert blamed["model.layers.0.mlp.gate_proj"] == "parallel plan"


def test_half_the_batch_is_the_workload_even_where_two_ranks_share_the_weights(folders: dict[str, Path]) -> None:
    left = lpo.trace(folders["llama"], prompt_tokens=TOKENS, batch=2)
    right = lpo.trace(folders["llama"], prompt_tokens=TOKENS, batch=1, tp=2)
    found = {
        (finding.difference.path, finding.difference.aspect): finding.cause
        for finding in compared(left, right)[0].findings
    }
    assert found["model.layers.0.input_layernorm", Aspect.INPUTS] == "workload"
    assert found["model.layers.0.mlp.gate_proj", Aspect.WEIGHTS] == "parallel plan"
    assert None not in found.values()


def test_a_budget_can_be_put_on_communication(folders: dict[str, Path]) -> None:
    one, two = (lpo.trace(folders["llama"], prompt_tokens=TOKENS, tp=2, batch=batch) for batch in (1, 2))
    answer = one.compare(two, budgets=["prefill.collectives==", "prefill.collective_bytes<=+0"])
    assert answer.budgets_broken == ("prefill.collective_bytes<=+0",)
