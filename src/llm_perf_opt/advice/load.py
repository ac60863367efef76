"""A request among others: what it waits for, and what the others add to its steps, by the steady state of `serve`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, ReplicaLimits, SteadyReplica, SteadyState
from llm_perf_opt.serving.engines import default_limits
from llm_perf_opt.serving.fit import fullest_fit, memory_of_ranks
from llm_perf_opt.serving.traffic_text import read_declared
from llm_perf_opt.timing.step.request_time import FirstToken
from llm_perf_opt.timing.step.step_rates import Decoder
from llm_perf_opt.timing.step.step_table import Curve
from llm_perf_opt.tracing.traced_run import media_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Who else sends requests: users who ask again after each answer, or requests at random times."""

    output_tokens: int
    users: int | None = None
    requests_per_s: float | None = None

    @classmethod
    def given(cls, output_tokens: int, users: int | None, rate: str | None) -> Load | None:
        """As people write it; None: the request is alone."""
        if users is not None and rate is not None:
            raise UsageError(
                "--users and --rate exclude each other.",
                why="users wait for their answers, a rate arrives by itself",
                fix="give only one of them",
            )
        if users is None and rate is None:
            return None
        arrivals = None if rate is None else read_declared(f"rate={rate} prompt=1 output=1").arrivals
        return cls(
            output_tokens=output_tokens, users=users, requests_per_s=None if arrivals is None else arrivals.per_s
        )

    @property
    def text(self) -> str:
        """As the first line says it."""
        return f"{self.requests_per_s:g} requests/s" if self.users is None else f"{self.users:,} users"

    def shared_by(self, replicas: int) -> Load:
        """What comes to one of several replicas."""
        users = None if self.users is None else ceil(self.users / replicas)
        per_s = None if self.requests_per_s is None else self.requests_per_s / replicas
        return replace(self, users=users, requests_per_s=per_s)


def steady_state(
    load: Load,
    graphs: tuple[CallGraph, ...],
    device: Device,
    decoder: Decoder,
    *,
    encoders_s: float,
    client: FirstToken,
) -> SteadyState | None:
    """One replica under a load; None: the cache has no room for it, or more requests come than it can answer.

    `encoders_s` is what the encoders take for the images of one request.
    """
    context, images = graphs[0].workload.get("context_tokens"), media_tokens(graphs[0])
    prompt = context if isinstance(context, int) else int(graphs[0].workload["prompt_tokens"])
    limits = default_limits(device)
    memory = memory_of_ranks(graphs, device, decoder.plan, limits=limits)
    length = prompt + load.output_tokens - 1  # no step reads the last token of an answer
    cache_tokens = fullest_fit(memory, device, context=length).cache_tokens
    if cache_tokens is None or cache_tokens < length:
        return None
    curve = Curve(at=(1.0, float(images)), seconds=(encoders_s / images, encoders_s)) if images > 1 else None
    own = ReplicaLimits(sequences=limits.sequences, batched_tokens=limits.chunk_tokens, cache_tokens=cache_tokens)
    replica = SteadyReplica(
        table=replace(decoder.table, images=curve),
        mean=MeanRequest(prompt_tokens=prompt, output_tokens=load.output_tokens, image_tokens=images),
        limits=own.of_groups(decoder.plan.attention_dp),
        is_closed=load.users is not None,
        client=client,
    )
    if load.users is None:
        assert load.requests_per_s is not None
        return replica.at_rate(load.requests_per_s)
    return replica.at(load.users) if load.users <= replica.most else None
