"""Real configurations, traced without weights, as their checkpoints store them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.adapter import HuggingFaceAdapter
from llm_perf_opt.tracing.deployed_traces import deployed

FACTS = Path(__file__).parents[1] / "facts"
CONFIGS = (FACTS / "deployment" / "configs", FACTS / "serving" / "configs")


@cache
def decode_step(name: str) -> CallGraph:
    """One decode step of the model in this folder."""
    folder = next(place / name for place in CONFIGS if (place / name).exists())
    adapter = HuggingFaceAdapter(folder, False)
    *_, target = adapter.targets(Workload(prompt_tokens=64, batch=1))
    assert target.phase == "decode"
    return deployed(adapter, [WeightlessTracer().trace(target)], Deployment())[0]
