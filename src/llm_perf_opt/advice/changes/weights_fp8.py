"""Weights in 8 bits, where the device multiplies them as they are."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite, stored_as
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.tensor_formats import FP8
from llm_perf_opt.timing.lower_bound import is_known


def _apply(setup: Setup) -> Setup | None:
    if not is_known(FP8, setup.device) or not setup.has_wide_weights:
        return None
    return replace(setup, graphs=stored_as(setup.graphs, "fp8", None))


REWRITE = Rewrite(
    title="weights and activations of matmuls in fp8",
    how="vLLM: --quantization fp8; PyTorch: torchao.quantize_(model, Float8DynamicActivationFloat8WeightConfig())",
    may_cost="accuracy: measure it on your own task",
    rests_on="the stored format fp8 of docs/reference/weight-formats.md",
    apply=_apply,
)
