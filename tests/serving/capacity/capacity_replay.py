"""A replay small enough to work out by hand: three requests, four steps."""

from __future__ import annotations

from llm_perf_opt.serving.requests import AnsweredRequests, EngineSteps, Replayed

REPLAYED = Replayed(
    requests=AnsweredRequests(
        ids=["r0", "r1", "r2"],
        arrival_s=[0.0, 1.0, 2.0],
        scheduled_s=[0.0, 1.5, 2.0],
        first_token_s=[0.5, 2.0, 3.0],
        last_token_s=[2.5, 4.0, 3.0],
        prompt_tokens=[100, 50, 50],
        output_tokens=[5, 3, 1],
        cached_tokens=[0, 20, 30],
        preemptions=[0, 1, 0],
    ),
    steps=EngineSteps(
        start_s=[0.0, 1.0, 2.0, 3.0],
        duration_s=[1.0, 1.0, 1.0, 1.0],
        decoding=[0, 1, 2, 1],
        prompt_tokens=[100, 0, 50, 0],
        running=[1, 1, 3, 1],
        waiting=[0, 2, 0, 0],
        cache_use=[0.2, 0.4, 1.0, 0.4],
    ),
    seconds=4.0,
    busy_s=3.0,
    engine={"version": "1.0", "scheduler": "Scheduler", "max_sequences": 8, "max_batched_tokens": 64},
)
