"""A module of the benchmarks as a process of vLLM's own Python, where its real engine for processors runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from llm_perf_opt.engines.vllm.environment import find
from llm_perf_opt.engines.vllm.process import environment_variables

_REAL_ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_SIM_MULTI_NUMA": "1"}  # two ranks on one node


def in_vllm(module: str, *words: str, **more: str) -> None:
    """Run it to its end; `more` are variables of its environment."""
    variables = {**environment_variables(), **_REAL_ENGINE, **more}
    variables["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    subprocess.run([str(find().python), "-m", module, *words], env=variables, check=True)
