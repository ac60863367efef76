"""vLLM's own estimate of a step: FLOPs and bytes of each component on one GPU, from its configuration alone."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.target import Json


def estimated(config: Any, graph: CallGraph) -> dict[str, Json]:
    """FLOPs, bytes read and bytes written by component for the steps of a phase; or why there are none."""
    from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

    metrics = ModelMetrics(config)
    if not metrics.is_enabled():
        return {"reason": "vLLM knows no component of this model"}
    workload = graph.workload
    prompt, new, batch = (int(workload[name]) for name in ("prompt_tokens", "new_tokens", "batch"))
    steps = int(workload["decode_steps"])
    is_prefill = graph.phase == "prefill"
    contexts = [(prompt, prompt)] if is_prefill else [(new, prompt + new * (step + 1)) for step in range(max(1, steps))]
    found: dict[str, dict[str, int]] = {"flops": {}, "bytes_read": {}, "bytes_written": {}}
    for tokens, context in contexts:
        step = ExecutionContext()
        for _ in range(batch):
            step.add(tokens, context, is_prefill=tokens > 1)
        for name, told in (
            ("flops", metrics.get_num_flops_breakdown(step, True)),
            ("bytes_read", metrics.get_read_bytes_breakdown(step, True)),
            ("bytes_written", metrics.get_write_bytes_breakdown(step, True)),
        ):
            for part, count in told.items():
                found[name][part] = found[name].get(part, 0) + int(count)
    return dict(found)
