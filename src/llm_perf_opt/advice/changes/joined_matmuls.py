"""Matmuls that read one input side by side in one: queries, keys and values; gate and up."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite, has_ops_of, with_rules
from llm_perf_opt.timing.fusions import Fusion

_RULES = (Fusion.QKV, Fusion.LATENT_INPUTS, Fusion.GATE_UP)

REWRITE = Rewrite(
    title="matmuls of one input joined",
    how="concatenate the weights of q, k and v, and of gate and up, when the model is loaded; split the result",
    may_cost="a checkpoint of another layout",
    rests_on="rules QKV and GATE_UP of docs/how/one-step.md",
    apply=with_rules(_RULES, has_ops_of(*_RULES)),
    is_of_code=True,
)
