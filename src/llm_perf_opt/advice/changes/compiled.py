"""Elementwise work between two matmuls in one kernel each, as Inductor writes them."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import Setup, has_looped_experts
from llm_perf_opt.timing.fusions import Fusion

_FUSED = with_rules(
    {Fusion.NORM, Fusion.ROTARY, Fusion.ACTIVATION, Fusion.ROUTER, Fusion.VECTOR, Fusion.LAYOUT, Fusion.OUTER}
)


def _apply(setup: Setup) -> Setup | None:
    """Experts that are chosen on the host break the graph of every layer: there is little to fuse between breaks."""
    if any(map(has_looped_experts, setup.graphs)) and Fusion.EXPERTS not in setup.rules:
        return None
    return _FUSED(setup)


REWRITE = Rewrite(
    title="torch.compile: elementwise work and copies fused",
    how="model = torch.compile(model)",
    may_cost="minutes to compile, again for each new shape",
    rests_on="rules NORM to VECTOR of docs/how/one-step.md, which Inductor need not reach in every place",
    apply=_apply,
    is_of_code=True,
)
