"""The rule of packed steps, on forms whose packed figure is worked out by hand."""

from __future__ import annotations

import pytest

from llm_perf_opt.ops.grouped_experts import touched_experts
from llm_perf_opt.sweeps.function.figures.packed import PackedSequence, PackingRule
from llm_perf_opt.sweeps.function.form import Form, Step, StepKind

B, N, C = Form.atom("batch"), Form.atom("new_tokens"), Form.atom("context")
SEQUENCES = [PackedSequence(7, 0), PackedSequence(3, 20), PackedSequence(1, 5), PackedSequence(1, 5)]
TOKENS = 12


@pytest.mark.parametrize(
    ("form", "packed"),
    [
        (Form.of(9), 9),
        (B * 5, 20),  # a row of logits for each sequence
        (100 + B * N * 3, 100 + 36),  # weights once, rows for each token
        (B * N * (N + C) * 4, 4 * (7 * 7 + 3 * 23 + 6 + 6)),  # attention: every new token meets its own keys
        (B * N * B * N, TOKENS * TOKENS),
        (B * Form.atom(Step(StepKind.CEIL, N, (4,))), 2 + 1 + 1 + 1),  # chunks of each sequence
        (Form.atom(Step(StepKind.TOUCHED, B * N, (2, 16))) * 64, 64 * touched_experts(16, 2, TOKENS)),
        (B * N * Form.atom(Step(StepKind.BITS, B * N * 2 - 1)), TOKENS * 5),  # a sort of 24 numbers
    ],
    ids=str,
)
def test_what_has_a_packed_figure(form: Form, packed: int) -> None:
    assert PackingRule(SEQUENCES).value(form) == packed


@pytest.mark.parametrize(
    "form",
    [N * 8, C + N, 8 + B * N + N, B * B, N * N + B, Form.atom(Step(StepKind.CEIL, N, (4,)))],
    ids=str,
)
def test_what_equal_sequences_share_has_none(form: Form) -> None:
    assert PackingRule(SEQUENCES).value(form) is None


def test_equal_sequences_give_the_form_itself() -> None:
    form = 17 + B * N * (3 * C + 5) + Form.atom(Step(StepKind.TOUCHED, B * N, (2, 16))) * 3
    for batch, new, cached in ((1, 1, 1), (4, 9, 30), (64, 1, 1000)):
        packed = PackingRule([PackedSequence(new, cached)] * batch).value(form)
        assert packed == form.at({"batch": batch, "new_tokens": new, "context": cached})
