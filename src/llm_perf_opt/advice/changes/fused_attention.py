"""Attention in one kernel that keeps its scores and skips what a causal mask hides."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import has_written_scores
from llm_perf_opt.timing.fusions import Fusion

REWRITE = Rewrite(
    title="fused attention in place of written scores",
    how='from_pretrained(..., attn_implementation="sdpa"), or "flash_attention_2"',
    may_cost="no attention weights to look at; outputs differ in the last digits",
    rests_on="rules ATTENTION and LAYOUT of docs/how/one-step.md, retraced: docs/evidence/advice-retraced.md",
    apply=with_rules({Fusion.ATTENTION, Fusion.LAYOUT}, has_written_scores),
    is_of_code=True,
)
