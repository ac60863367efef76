"""The head on the last position alone: the logits of all others are made and never read."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.timing.engine_kernels import engine_rules
from llm_perf_opt.timing.fusions import Fusion


def _apply(setup: Setup) -> Setup | None:
    if not any(fused.rule is Fusion.HEAD for graph in setup.graphs for fused in engine_rules(graph)):
        return None
    return with_rules(setup, frozenset({Fusion.HEAD}))


REWRITE = Rewrite(
    title="logits of the last position alone",
    how="model(..., logits_to_keep=1); generate() of transformers 5 does so",
    may_cost="nothing, unless the log-probabilities of the prompt are asked for",
    rests_on="rule HEAD of docs/how/one-step.md",
    apply=_apply,
    is_of_code=True,
)
