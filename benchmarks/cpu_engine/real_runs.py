"""Runs in vLLM's Python: the real engine for processors serves every load, several times over; results as JSON.

The clock goes on by the processor time of each step, as `benchmarks.vllm_schedules.real_engine` does it; the processor
time of the whole loop tells what vLLM's scheduler and bookkeeping add next to the steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu_engine.loads import REPEATS, loads
from benchmarks.vllm_schedules.real_engine import build
from llm_perf_opt.serving.vllm.inside.front_end import RequestWriter
from llm_perf_opt.serving.vllm.inside.run import run

_FIRST_OF_PREFIX = 1500
_TIMES = ("arrival_s", "first_token_s", "last_token_s", "prompt_tokens", "output_tokens")
_STEPS = ("duration_s", "decoding", "prompt_tokens")


def _kept(columns: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: [round(value, 6) for value in getattr(columns, name)] for name in names}


def served(model: str) -> list[dict[str, Any]]:
    """The loads in turn, then all of them again: a machine drifts."""
    rows = []
    named = loads(model)
    core = build(next(iter(named.values())))
    torch.set_num_threads(1)
    for repeat in range(-1, REPEATS):  # the first round warms up
        for name, load in named.items():
            core.model_executor.begin(core.scheduler)
            began = time.thread_time()
            (answered,) = run([core], load.traffic(), RequestWriter(_FIRST_OF_PREFIX).engine_request)
            spent_s = time.thread_time() - began
            log = core.model_executor.log
            row = {"load": name, "repeat": repeat, "busy_s": log.busy_s, "loop_s": spent_s}
            rows.append({**row, "requests": _kept(answered, _TIMES), "steps": _kept(log.steps, _STEPS)})
            print(
                f"{model}, {name}: {len(log.steps.start_s)} steps, {log.busy_s:.1f} of {spent_s:.1f} s", file=sys.stderr
            )
    core.shutdown()
    return [row for row in rows if row["repeat"] >= 0]


if __name__ == "__main__":
    chosen, out = sys.argv[1:]
    Path(out).write_text(json.dumps(served(chosen)), encoding="utf-8")
