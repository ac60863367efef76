"""Weights in 4 bits with a scale for 128 of them; matmuls stay in 16 bits."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite, stored_as
from llm_perf_opt.advice.setup import Setup


def _apply(setup: Setup) -> Setup | None:
    """Engines have kernels for them on GPUs of NVIDIA and AMD; without decode steps there is little to gain."""
    if not setup.is_engine or not setup.is_on_gpu or not setup.has_wide_weights or setup.decode is None:
        return None
    return replace(setup, graphs=stored_as(setup.graphs, "int4-g128", None))


REWRITE = Rewrite(
    title="weights in int4, groups of 128",
    how="a checkpoint quantised by AWQ or GPTQ; vLLM takes it as it is",
    may_cost="accuracy, more than fp8; long prompts may get slower",
    rests_on="the stored format int4-g128 of docs/reference/weight-formats.md",
    apply=_apply,
    rather="weights-fp8",
)
