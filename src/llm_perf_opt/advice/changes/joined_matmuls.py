"""Matmuls that read one input side by side in one: queries, keys and values; gate and up."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, with_rules
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.timing.engine_kernels import engine_rules
from llm_perf_opt.timing.fusions import Fusion

_RULES = frozenset({Fusion.QKV, Fusion.LATENT_INPUTS, Fusion.GATE_UP})


def _apply(setup: Setup) -> Setup | None:
    if not any(fused.rule in _RULES for graph in setup.graphs for fused in engine_rules(graph)):
        return None
    return with_rules(setup, _RULES)


REWRITE = Rewrite(
    title="matmuls of one input joined",
    how="concatenate the weights of q, k and v, and of gate and up, when the model is loaded; split the result",
    may_cost="a checkpoint of another layout",
    rests_on="rules QKV and GATE_UP of docs/how/one-step.md",
    apply=_apply,
    is_of_code=True,
)
