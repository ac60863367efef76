"""The routed experts of a layer in one grouped kernel, in place of a loop over them."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import has_looped_experts
from llm_perf_opt.timing.fusions import Fusion

REWRITE = Rewrite(
    title="experts of a layer in one grouped kernel",
    how='experts_implementation="grouped_mm" in transformers 5; elsewhere torch._grouped_mm on sorted rows',
    may_cost="the matrices of the experts have to lie in one tensor",
    rests_on="the ops that transformers runs then, retraced: docs/evidence/advice-retraced.md",
    apply=with_rules({Fusion.EXPERTS}, has_looped_experts),
    is_of_code=True,
)
