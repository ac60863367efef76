"""The memory of a run as JSON-safe values, in bytes: the part of `static_compute.json` under `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llm_perf_opt.analyses.memory.attention_cases import AttentionCase
from llm_perf_opt.analyses.memory.need import PhaseMemory, RunMemory
from llm_perf_opt.analyses.memory.peak import Peak


def memory_document(memory: RunMemory, cases: Sequence[AttentionCase] = ()) -> dict[str, Any]:
    """Every part by name, what is alive at each phase's peak, and the two kinds of attention if both were traced."""
    return {
        "needed_bytes": memory.total_bytes,
        "kv_cache": None
        if memory.cache is None
        else {
            "tensors": len(memory.cache.tensors),
            "bytes": memory.cache.bytes,
            "bytes_per_token": memory.cache.bytes_per_token,
        },
        "phases": [_phase(phase) for phase in memory.phases],
        "attention_cases": [
            {
                "phase": case.phase,
                "stage": case.stage,
                "modules": case.modules,
                "eager": None if case.eager is None else asdict(case.eager),
                "fused": None if case.fused is None else asdict(case.fused),
            }
            for case in cases
        ],
    }


def _phase(phase: PhaseMemory) -> dict[str, Any]:
    return {
        "phase": phase.phase,
        "weight_bytes": phase.weight_bytes,
        "buffer_bytes": phase.buffer_bytes,
        "input_bytes": phase.input_bytes,
        "peak_kv_bytes": phase.peak_kv_bytes,
        "peak_input_bytes": phase.peak_input_bytes,
        "peak_live_bytes": None if phase.peak is None else phase.peak.bytes,
        "needed_bytes": phase.total_bytes,
        "peak": None if phase.peak is None else _peak(phase.peak),
        "stages": [
            {
                "stage": stage.stage,
                "weight_bytes": stage.weight_bytes,
                "input_bytes": stage.input_bytes,
                "kv_bytes": stage.kv_bytes,
                "peak_live_bytes": stage.peak.bytes,
                "module": stage.peak.path,
                "op": stage.peak.op,
            }
            for stage in phase.stages
        ],
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        "module": peak.path,
        "op": peak.op,
        "alive": [
            {
                "tensor": one.tensor,
                "count": one.count,
                "bytes": one.bytes,
                "made_by": one.made_by,
                "module": one.path,
            }
            for one in peak.alive
        ],
    }
