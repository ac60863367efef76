"""The cases: what SGLang is told, and the requests that it gets. One feature of the scheduler each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.vllm_schedules.cases import FOLDER as VLLM_FOLDER
from benchmarks.vllm_schedules.cases import H100
from llm_perf_opt.serving.engine_settings import EngineSettings
from llm_perf_opt.serving.requests import Request, Traffic

FOLDER = VLLM_FOLDER.with_name("sglang_schedules")
STEP_S = 0.008  # about what a step takes: arrivals are given in steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Limits of the engine, further arguments by SGLang's own names, and the kind of requests."""

    tokens: int = 512
    sequences: int = 16
    cache: int = 20_000  # tokens
    model: str = "tiny"
    more: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 60
    longest_prompt: int = 700
    longest_answer: int = 40
    prefixes: int = 0
    priorities: int = 1
    concurrency: int | None = None  # the client of the recording keeps so many in flight
    gaps: tuple[int, ...] = (0, 0, 1, 2, 5)  # steps between two arrivals

    def settings(self) -> EngineSettings:
        """As a replay is told them; the model is named by its folder next to vLLM's recorded files."""
        return EngineSettings(
            model=f"models/{self.model}",
            device=H100,
            dtype="bfloat16",
            cache_blocks=self.cache // int(self.more.get("page_size", 1)),
            max_sequences=self.sequences,
            max_batched_tokens=self.tokens,
            max_model_tokens=2048,
            more=self.more,
        )

    def traffic(self) -> Traffic:
        """Seeded. When requests really come is recorded."""
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
            step += chance.choice(self.gaps)
        return Traffic(requests=tuple(made), origin="seeded")


_WAVES = (*(0,) * 9, 500)  # after each retraction SGLang is careful, until it was idle
CASES = {
    "single": Case(requests=1, longest_answer=120),
    "burst": Case(gaps=(0,)),
    "arrivals": Case(gaps=(1, 3, 9, 40)),  # the server is idle in between
    "chunked": Case(tokens=128, longest_prompt=1500, requests=30),
    "prefix": Case(prefixes=4),
    "prefix-tight": Case(prefixes=4, cache=2000),
    "retraction": Case(
        cache=1200,
        longest_prompt=150,
        longest_answer=300,
        gaps=_WAVES,
        more={"schedule_conservativeness": 0.1},
    ),
    "mixed-outputs": Case(longest_answer=200, longest_prompt=100, requests=50),
    "closed-loop": Case(concurrency=6),
    "few-running": Case(sequences=3, requests=40),
    "no-overlap": Case(more={"disable_overlap_schedule": True}),
    "no-overlap-retraction": Case(
        cache=1200,
        longest_prompt=150,
        longest_answer=300,
        gaps=_WAVES,
        more={"schedule_conservativeness": 0.1, "disable_overlap_schedule": True},
    ),
    "no-prefix-cache": Case(prefixes=4, more={"disable_radix_cache": True}),
    "lpm": Case(prefixes=6, gaps=(0, 0, 0, 1), sequences=6, more={"schedule_policy": "lpm"}),
    "priority": Case(priorities=3, sequences=5, gaps=(0, 0, 1), more={"enable_priority_scheduling": True}),
    "mixed-chunk": Case(tokens=128, more={"enable_mixed_chunk": True}),
    "pages": Case(prefixes=4, cache=3200, more={"page_size": 16}),
    "window": Case(model="gpt-oss", cache=4000, longest_prompt=900),
}
