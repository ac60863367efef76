"""Weights and activations in bfloat16 in place of float32."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite, in_half_precision
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.timing.lower_bound import is_known


def _apply(setup: Setup) -> Setup | None:
    if setup.graphs[0].workload.get("dtype") != "float32" or not is_known("bfloat16", setup.device):
        return None
    return replace(setup, graphs=in_half_precision(setup.graphs))


REWRITE = Rewrite(
    title="bfloat16 in place of float32",
    how="from_pretrained(..., dtype=torch.bfloat16)",
    may_cost="accuracy, little where the model was trained in bfloat16",
    rests_on="the trace with every float32 tensor in bfloat16",
    apply=_apply,
)
