"""Keys and values in 8 bits."""

from __future__ import annotations

from dataclasses import replace

from llm_perf_opt.advice.rewrite import Rewrite, stored_as
from llm_perf_opt.advice.setup import Setup
from llm_perf_opt.core.tensor_formats import FP8
from llm_perf_opt.costs.stored_formats import can_store_cache
from llm_perf_opt.timing.lower_bound import is_known


def _apply(setup: Setup) -> Setup | None:
    """The kernels that read such a cache are an engine's."""
    if not setup.is_engine or not is_known(FP8, setup.device) or setup.decode is None:
        return None
    if setup.graphs[0].deployment.get("cache") is not None or not can_store_cache(setup.graphs):
        return None
    return replace(setup, graphs=stored_as(setup.graphs, None, "fp8"))


REWRITE = Rewrite(
    title="KV cache in fp8",
    how="vLLM: --kv-cache-dtype fp8",
    may_cost="accuracy on long contexts: measure it",
    rests_on="the cache format fp8 of docs/reference/weight-formats.md",
    apply=_apply,
)
