"""Every aggregated record of the field, answered by a replay: its deployment as a step table, its load as traffic.

The scheduler is vLLM's for all three engines, with one budget of tokens for a step; what it knows of a model is how
many blocks its cache has. Lengths are fixed, or drawn from the range that the load generator drew from. Two and a half
rounds of requests are replayed, two where many are in flight: a server starts with all clients at once, and the second
round is what its steady state is like, if it is whole. A record's mean is over ten rounds where its load generator
sends ten.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.bounds.measured_run import MeasuredRun
from benchmarks.bounds.traced_models import CONFIGS
from benchmarks.serving_replay.cache_room import BLOCK, cache_blocks
from benchmarks.serving_times.deployed import deployed_blocks, engine_plan
from benchmarks.serving_times.estimates import has_drawn_lengths
from llm_perf_opt.analyses.serving.engine_time import EngineTimer
from llm_perf_opt.analyses.serving.step_tables import step_table
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.core.serving.replayed import Replayed
from llm_perf_opt.core.serving.requests import Request, Traffic
from llm_perf_opt.core.serving.step_table import StepTable
from llm_perf_opt.engines.vllm.jobs import ReplayJob
from llm_perf_opt.engines.vllm.process import ReplayProcess

BUDGET = 8192  # new tokens in a step: the default of servers on GPUs of this size
ROUNDS_SENT = 10  # by the load generator that draws lengths from a range
SHORTEST_SHARE = 0.8  # of the longest, in that range
LONGEST_JUMP = 4000
_ROUNDS = ((64, 2.5), (10**6, 2.0))  # up to so many in flight, so many rounds of requests
_WIDE_CACHE = 65536  # blocks, where no cache limits a load


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay gives for one record, in seconds; `first` are the requests that come at the start."""

    name: str
    tpot_s: float
    ttft_s: float
    e2e_s: float
    first_ttft_s: float
    preemptions: int
    steps: int
    cpu_s: float
    rounds: float


def rounds_of(run: MeasuredRun) -> float:
    """How many rounds of its clients are replayed."""
    return next(rounds for most, rounds in _ROUNDS if (run.in_flight or 1) <= most)


def load_of(run: MeasuredRun) -> Traffic:
    """So many in flight, some rounds of them."""
    flight = run.in_flight or 1
    sent = round(rounds_of(run) * flight)
    draw = random.Random(run.name)
    is_range = has_drawn_lengths(run)
    ends = [
        (round(2 * SHORTEST_SHARE * mean / (1 + SHORTEST_SHARE)), round(2 * mean / (1 + SHORTEST_SHARE)))
        if is_range
        else (mean, mean)
        for mean in (run.prompt_tokens, run.output_tokens)
    ]
    requests = tuple(
        Request(
            id=str(at),
            arrival_s=0.0,
            prompt_tokens=max(1, draw.randint(*ends[0])),
            output_tokens=max(2, draw.randint(*ends[1])),
        )
        for at in range(sent)
    )
    return Traffic(requests=requests, concurrency=flight, origin=run.name)


def settings_of(run: MeasuredRun, traffic: Traffic) -> EngineSettings:
    """One engine for all records whose cache is wide enough; one of its own for each other."""
    plan = engine_plan(run)
    wanted = sum(sorted(r.prompt_tokens + r.output_tokens for r in traffic.requests)[-(run.in_flight or 1) :])
    room = cache_blocks(deployed_blocks(run), run.device, plan)
    blocks = max(_WIDE_CACHE, 2 ** (wanted // BLOCK).bit_length()) if room * BLOCK > wanted * 1.1 else room
    return EngineSettings(
        model=str(CONFIGS / "llama-3.1-8b"),  # of which the scheduler minds nothing but the blocks
        device=SeenDevice.of(find_device("h100-sxm")),
        dtype="bfloat16",
        cache_blocks=blocks,
        max_sequences=max(1024, run.in_flight or 1),
        max_batched_tokens=BUDGET * plan.data,
        max_model_tokens=65536,
        more={
            "async_scheduling": False,
            "enable_prefix_caching": False,
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": LONGEST_JUMP,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            },
        },
    )


def read_kept(kept: Path) -> dict[str, Replay]:
    """What earlier calls have left, by the name of the record."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return {row["name"]: Replay(**row) for row in map(json.loads, lines)}


def replays(runs: Sequence[MeasuredRun], kept: Path) -> Iterator[Replay]:
    """All of them, few in flight first; what an earlier call has left in `kept`, with as many rounds, is kept."""
    found = read_kept(kept)
    known = {
        run.name: found[run.name] for run in runs if run.name in found and found[run.name].rounds >= rounds_of(run)
    }
    yield from (known[run.name] for run in runs if run.name in known)
    left = [(run, load_of(run)) for run in runs if run.name not in known]
    todo = [(settings_of(run, traffic), run, traffic) for run, traffic in left]
    todo.sort(key=lambda one: (one[1].in_flight or 1, one[0].cache_blocks or 0))
    tables: dict[object, StepTable] = {}
    timers: dict[tuple[str, str], EngineTimer] = {}
    with ReplayProcess() as process, kept.open("a", encoding="utf-8") as file:
        for settings, run, traffic in todo:
            key = _deployment(run)
            if key not in tables:
                tables[key] = _table(run, timers)
            done = process.replay(ReplayJob(settings=settings, traffic=traffic, table=tables[key], has_jumps=True))
            found = judged(run, traffic, done)
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()
            yield found


def replay_once(process: ReplayProcess, run: MeasuredRun, traffic: Traffic) -> Replayed:
    """One of them, whole."""
    settings = settings_of(run, traffic)
    return process.replay(ReplayJob(settings=settings, traffic=traffic, table=_table(run, {}), has_jumps=True))


def _deployment(run: MeasuredRun) -> tuple[object, ...]:
    return run.model, run.device, run.engine, run.precision, run.decode_plan, run.decode_gpus


def _table(run: MeasuredRun, timers: dict[tuple[str, str], EngineTimer]) -> StepTable:
    key = (run.device, run.engine)
    if key not in timers:
        timers[key] = EngineTimer(*key)
    return replace(step_table(deployed_blocks(run), timers[key], engine_plan(run)), origin="")


def judged(run: MeasuredRun, traffic: Traffic, done: Replayed) -> Replay:
    """Means over the rounds that the load generator sent."""
    found, flight = done.requests, run.in_flight or 1
    ttft = [first - came for first, came in zip(found.first_token_s, found.arrival_s, strict=True)]
    e2e = [last - came for last, came in zip(found.last_token_s, found.arrival_s, strict=True)]
    tpot = [
        (last - first) / (tokens - 1)
        for last, first, tokens in zip(found.last_token_s, found.first_token_s, found.output_tokens, strict=True)
    ]
    sent = ROUNDS_SENT if has_drawn_lengths(run) else 0

    def over_all(times: Sequence[float]) -> float:
        first, later = fmean(times[:flight]), fmean(times[flight : 2 * flight])
        return (first + (sent - 1) * later) / sent if sent else later

    return Replay(
        name=run.name,
        tpot_s=over_all(tpot),
        ttft_s=over_all(ttft),
        e2e_s=over_all(e2e),
        first_ttft_s=fmean(ttft[:flight]),
        preemptions=sum(found.preemptions),
        steps=len(done.steps.start_s),
        cpu_s=done.cpu_s,
        rounds=rounds_of(run),
    )
