"""A serving engine runs the model: its own fused kernels, with launches captured in CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.timing.datasheet_rates import Execution


def _apply(setup: Setup) -> Setup | None:
    """Engines decode: a model that generates nothing gains little from one."""
    if setup.is_engine or setup.decode is None:
        return None
    return replace(setup, execution=Execution.FUSED, rules=frozenset(), captured=frozenset())


REWRITE = Rewrite(
    title="serve with an engine",
    how="vllm serve MODEL; SGLang and TensorRT-LLM alike, where they have the model",
    may_cost="another code of the model; outputs differ in the last digits",
    rests_on="the kernels of an engine's step, as serve prints it (docs/how/one-step.md)",
    apply=_apply,
)
