"""Latent attention on the cached vectors themselves: a step does not expand the whole cache again."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.timing.engine_kernels import engine_rules
from llm_perf_opt.timing.fusions import Fusion


def _apply(setup: Setup) -> Setup | None:
    """The kernel on latent vectors is a fused one."""
    if not any(fused.rule is Fusion.ABSORBED for graph in setup.graphs for fused in engine_rules(graph)):
        return None
    return with_rules(setup, frozenset({Fusion.ABSORBED, Fusion.ATTENTION}))


REWRITE = Rewrite(
    title="absorbed latent attention in decode steps",
    how="fold kv_b_proj into the queries and the output, cache latent vectors alone; FlashMLA is such a kernel",
    may_cost="other rounding than the released code",
    rests_on="rule ABSORBED of docs/how/one-step.md",
    apply=_apply,
    is_of_code=True,
)
