"""Latent attention on the cached vectors themselves: a step does not expand the whole cache again."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, has_ops_of, with_rules
from llm_perf_opt.timing.fusions import Fusion

REWRITE = Rewrite(
    title="absorbed latent attention in decode steps",
    how="fold kv_b_proj into the queries and the output, cache latent vectors alone; FlashMLA is such a kernel",
    may_cost="other rounding than the released code",
    rests_on="rule ABSORBED of docs/how/one-step.md",
    apply=with_rules({Fusion.ABSORBED, Fusion.ATTENTION}, has_ops_of(Fusion.ABSORBED)),
    is_of_code=True,
)
