"""One file per change: a rewrite of what runs, and what a reader must know of it; and the table of them all."""

from __future__ import annotations

from llm_perf_opt.advice.rewrite import Rewrite
from llm_perf_opt.core.plugins import Registry

CHANGES: Registry[Rewrite] = Registry(
    "change",
    {
        "engine": "llm_perf_opt.advice.changes.engine:REWRITE",
        "grouped-experts": "llm_perf_opt.advice.changes.grouped_experts:REWRITE",
        "captured-graphs": "llm_perf_opt.advice.changes.captured_graphs:REWRITE",
        "compiled": "llm_perf_opt.advice.changes.compiled:REWRITE",
        "fused-attention": "llm_perf_opt.advice.changes.fused_attention:REWRITE",
        "last-logits": "llm_perf_opt.advice.changes.last_logits:REWRITE",
        "absorbed-latent": "llm_perf_opt.advice.changes.absorbed_latent:REWRITE",
        "joined-matmuls": "llm_perf_opt.advice.changes.joined_matmuls:REWRITE",
        "half-precision": "llm_perf_opt.advice.changes.half_precision:REWRITE",
        "weights-fp8": "llm_perf_opt.advice.changes.weights_fp8:REWRITE",
        "weights-int4": "llm_perf_opt.advice.changes.weights_int4:REWRITE",
        "cache-fp8": "llm_perf_opt.advice.changes.cache_fp8:REWRITE",
        "larger-batch": "llm_perf_opt.advice.changes.larger_batch:REWRITE",
        "tensor-parallel": "llm_perf_opt.advice.changes.tensor_parallel:REWRITE",
        "second-replica": "llm_perf_opt.advice.changes.second_replica:REWRITE",
    },
)
