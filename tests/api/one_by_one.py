"""In place of vLLM: requests one after another, each in the time of its table."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from llm_perf_opt.serving.capacity.replays import dealt
from llm_perf_opt.serving.engine_process.jobs import ReplayJob
from llm_perf_opt.serving.requests import AnsweredRequests, EngineSteps, Replayed


class OneByOne:
    """In place of vLLM: every replica answers one request after another, each in the time of its table."""

    asked: list[ReplayJob]

    def __init__(self, environment: object, engine: object = None) -> None:
        OneByOne.asked = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def replay_replicas(self, job: ReplayJob) -> list[Replayed]:
        return [self.replay(replace(job, traffic=share)) for share in dealt(job.traffic, job.replicas)]

    def replay(self, job: ReplayJob) -> Replayed:
        OneByOne.asked.append(job)
        assert job.table is not None
        columns: list[list[float]] = [[], [], [], []]
        free = 0.0
        for request in job.traffic.requests:
            arrival = max(request.arrival_s, free) if job.traffic.concurrency else request.arrival_s
            begun = max(arrival, free)
            images = sum(image.tokens for image in request.images)
            first = begun + job.slower * job.table.seconds(0, 0, [(request.prompt_tokens, 0)], images)
            free = first + (request.output_tokens - 1) * job.slower * job.table.seconds(1, request.prompt_tokens)
            for column, time in zip(columns, (arrival, begun, first, free), strict=True):
                column.append(time)
        count = len(job.traffic.requests)
        ones, durations = [1] * count, [end - start for start, end in zip(columns[1], columns[3], strict=True)]
        return Replayed(
            requests=AnsweredRequests(
                ids=[request.id for request in job.traffic.requests],
                arrival_s=columns[0],
                scheduled_s=columns[1],
                first_token_s=columns[2],
                last_token_s=columns[3],
                prompt_tokens=[request.prompt_tokens for request in job.traffic.requests],
                output_tokens=[request.output_tokens for request in job.traffic.requests],
                cached_tokens=[0] * count,
                preemptions=[0] * count,
            ),
            steps=EngineSteps(
                start_s=columns[1],
                duration_s=durations,
                decoding=ones,
                prompt_tokens=ones,
                running=ones,
                waiting=[0] * count,
                cache_use=[0.1] * count,
            ),
            seconds=free,
            busy_s=sum(durations),
            engine={"version": "none", "scheduler": "OneByOne"},
        )
