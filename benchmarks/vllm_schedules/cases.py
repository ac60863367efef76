"""The cases: what the engine is told, and the requests that it gets. One feature of the scheduler each."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.engine_process.environment import find
from llm_perf_opt.serving.engine_process.process import environment_variables
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Request, Traffic

FOLDER = Path(__file__).parents[2] / "tests" / "facts" / "vllm_schedules"
H100 = SeenDevice(name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984, capability=(9, 0), compute_units=132)
STEP_S = 0.004  # about what a step of the tiny model takes: arrivals are given in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Limits of the engine, further arguments by vLLM's own names, and the kind of requests."""

    tokens: int
    sequences: int
    blocks: int
    model: str = "tiny"
    more: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 100
    longest_prompt: int = 700
    longest_answer: int = 60
    prefixes: int = 0
    priorities: int = 1
    concurrency: int | None = None
    has_images: bool = False  # one in front of each prompt
    is_async: bool = False
    pipeline: int = 1

    def settings(self) -> EngineSettings:
        """As a replay is told them; the model is named by its folder next to the recorded files."""
        more = {"block_size": 32, "async_scheduling": self.is_async, "enforce_eager": True, **self.more}
        return EngineSettings(
            model=f"models/{self.model}",
            device=H100,
            plan=ParallelPlan(pp=self.pipeline),
            dtype="bfloat16",
            cache_blocks=self.blocks,
            max_sequences=self.sequences,
            max_batched_tokens=self.tokens,
            max_model_tokens=2048,
            more=more,
        )

    def traffic(self) -> Traffic:
        """Seeded. Requests come in groups, a few steps apart."""
        chance = random.Random(7)
        step, made = 0.0, []
        for number in range(self.requests):
            prompt, prefix, shared = chance.randrange(8, self.longest_prompt), None, 0
            if self.prefixes:
                name = chance.randrange(self.prefixes)
                prefix, shared = f"p{name}", 100 + 70 * name
                prompt = shared + prompt % 200
            made.append(
                Request(
                    id=f"r{number}",
                    arrival_s=round(step * STEP_S, 6),
                    prompt_tokens=prompt,
                    output_tokens=chance.randrange(1, self.longest_answer),
                    prefix=prefix,
                    prefix_tokens=shared,
                    priority=chance.randrange(self.priorities),
                )
            )
            step += chance.choice((0, 0, 1, 2, 5))
        return Traffic(requests=tuple(made), concurrency=self.concurrency, origin="seeded")


CASES = {
    "chunked": Case(tokens=256, sequences=16, blocks=2000),
    "preemption": Case(tokens=512, sequences=32, blocks=80),
    "prefix": Case(tokens=512, sequences=16, blocks=400, prefixes=4),
    "prefix-tight": Case(tokens=512, sequences=16, blocks=70, prefixes=4),
    "no-prefix-cache": Case(tokens=512, sequences=16, blocks=90, prefixes=4, more={"enable_prefix_caching": False}),
    "priority": Case(tokens=384, sequences=8, blocks=70, priorities=3, more={"scheduling_policy": "priority"}),
    "long-prefill-cap": Case(tokens=512, sequences=16, blocks=2000, more={"long_prefill_token_threshold": 100}),
    "no-chunks": Case(
        tokens=2048, sequences=16, blocks=2000, longest_prompt=900, more={"enable_chunked_prefill": False}
    ),
    "async": Case(tokens=384, sequences=16, blocks=90, is_async=True),
    "async-prefix": Case(tokens=512, sequences=16, blocks=400, prefixes=4, is_async=True),
    "closed-loop": Case(tokens=512, sequences=16, blocks=400, concurrency=6, requests=60),
    "window": Case(tokens=384, sequences=16, blocks=200, model="window"),
    "images": Case(
        tokens=1024,
        sequences=8,
        blocks=300,
        model="images",
        requests=60,
        has_images=True,
        more={"mm_processor_cache_gb": 0, "skip_mm_profiling": True},
    ),
    "pipeline": Case(tokens=384, sequences=16, blocks=200, pipeline=2),
    "pipeline-tight": Case(tokens=384, sequences=16, blocks=80, pipeline=2, requests=60),
    "n-gram": Case(
        tokens=512,
        sequences=16,
        blocks=2000,
        more={
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            }
        },
    ),
}


_REAL_ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_SIM_MULTI_NUMA": "1"}  # two ranks on one node


def in_vllm(module: str, *words: str, **more: str) -> None:
    """Run it to its end; `more` are variables of its environment."""
    variables = {**environment_variables(), **_REAL_ENGINE, **more}
    variables["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    subprocess.run([str(find().python), "-m", module, *words], env=variables, check=True)
