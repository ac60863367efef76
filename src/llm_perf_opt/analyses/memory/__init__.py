"""Does it fit: weights, KV cache, live activations from tensor lifetimes, and what is alive at the peak."""

from llm_perf_opt.analyses.memory.attention_cases import AttentionCase, AttentionPeak, attention_cases, attention_table
from llm_perf_opt.analyses.memory.kv_cache import KvCache, kv_cache
from llm_perf_opt.analyses.memory.memory_report import memory_document, memory_report
from llm_perf_opt.analyses.memory.need import PhaseMemory, RunMemory, StageMemory, need_table, run_memory
from llm_perf_opt.analyses.memory.peak import AliveTensors, Peak, alive_at, peak_of
from llm_perf_opt.analyses.memory.timeline import StageCurve, Timeline, step_points, timeline

__all__ = [
    "AliveTensors",
    "AttentionCase",
    "AttentionPeak",
    "KvCache",
    "Peak",
    "PhaseMemory",
    "RunMemory",
    "StageCurve",
    "StageMemory",
    "Timeline",
    "alive_at",
    "attention_cases",
    "attention_table",
    "kv_cache",
    "memory_document",
    "memory_report",
    "need_table",
    "peak_of",
    "run_memory",
    "step_points",
    "timeline",
]
