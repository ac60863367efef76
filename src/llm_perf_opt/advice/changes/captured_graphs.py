"""The kernels of a decode step recorded once in a CUDA graph, and replayed with one launch."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.advice.setup import Setup, has_looped_experts
from llm_perf_opt.core.measurement import DECODE
from llm_perf_opt.timing.fusions import Fusion


def _apply(setup: Setup) -> Setup | None:
    """Only steps of one shape can be recorded, and only where no expert is chosen on the host."""
    decode = setup.decode
    if setup.is_engine or decode is None or DECODE in setup.captured or not setup.is_on_gpu:
        return None
    if has_looped_experts(decode) and Fusion.EXPERTS not in setup.rules:
        return None
    return replace(setup, captured=setup.captured | {DECODE}, rules=setup.rules | {Fusion.CACHE_IN_PLACE})


REWRITE = Rewrite(
    title="decode steps in a CUDA graph, with a static cache",
    how='generate(cache_implementation="static") and torch.compile(model.forward, mode="reduce-overhead")',
    may_cost="memory for the graph and the whole cache from the start; one recording per batch size",
    rests_on="the time of the device alone: a replayed graph has no host launches",
    apply=_apply,
    is_of_code=True,
)
