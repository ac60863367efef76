"""The head on the last position alone: the logits of all others are made and never read."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, has_ops_of, with_rules
from llm_perf_opt.timing.fusions import Fusion

REWRITE = Rewrite(
    title="logits of the last position alone",
    how="model(..., logits_to_keep=1); generate() of transformers 5 does so",
    may_cost="nothing, unless the log-probabilities of the prompt are asked for",
    rests_on="rule HEAD of docs/how/one-step.md",
    apply=with_rules({Fusion.HEAD}, has_ops_of(Fusion.HEAD)),
    is_of_code=True,
)
