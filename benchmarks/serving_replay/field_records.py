"""Every aggregated record of the field, answered by a replay: its deployment as a step table, its load as traffic.

The scheduler is vLLM's for all three engines, with one budget of tokens for a step; what it knows of a model is how
many blocks its cache has. Lengths are fixed, or drawn from the range that the load generator drew from. Clients of one
length would stay in step for ever in a replay; in a server they are answered one after the other, so they drift. Three
rounds of requests are replayed: the first begins with all clients at once, the second has a full house before and
behind it, and in the last one fewer and fewer are left. A record's mean is over ten rounds where its load generator
sends ten: a first one, a last one, and eight like the second.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from benchmarks.records import CONFIGS, MeasuredRun
from benchmarks.serving_times.estimates import deployed_blocks, engine_plan, has_drawn_lengths
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.tensor_formats import weight_format as stored
from llm_perf_opt.serving.engine_process.jobs import ReplayJob, read_message, write_message
from llm_perf_opt.serving.engine_process.process import ReplayProcess
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice
from llm_perf_opt.serving.requests import Replayed, Request, Traffic
from llm_perf_opt.serving.vllm.inside.sampling import JumpingTime
from llm_perf_opt.timing.step.engine_blocks import EngineBlocks
from llm_perf_opt.timing.step.engine_time import EngineTimer
from llm_perf_opt.timing.step.step_table import RankStep, StepTable
from llm_perf_opt.timing.step.step_tables import step_table

BUDGET = 8192  # new tokens in a step: the default of servers on GPUs of this size
ROUNDS_SENT = 10  # by the load generator that draws lengths from a range
SHORTEST_SHARE = 0.8  # of the longest, in that range
LONGEST_JUMP = 4000
ROUNDS = 3
MANY = 500  # in flight: beyond, one of the groups of ranks with sequences of their own stands for all
DRIFT = 4  # tokens by which answers of one length differ: clients that began together do not stay in step
_WIDE_CACHE = 65536  # blocks, where no cache limits a load


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a replay gives for one record, in seconds.

    `prompt_s` is the step of one prompt alone, `queued_s` how long a request waits until it is part of a step.
    """

    name: str
    tpot_s: float
    ttft_s: float
    e2e_s: float
    prompt_s: float
    queued_s: float
    preemptions: int
    steps: int


def clients_of(run: MeasuredRun) -> int:
    """Requests in flight that are replayed."""
    return max(1, round((run.in_flight or 1) / groups_alike(run)))


def groups_alike(run: MeasuredRun) -> int:
    """How many groups of ranks one is replayed for."""
    return engine_plan(run).attention_dp if (run.in_flight or 1) > MANY else 1


def load_of(run: MeasuredRun) -> Traffic:
    """This many in flight, three rounds of them; records with the same load have the same requests."""
    flight = clients_of(run)
    is_range = has_drawn_lengths(run)
    draw = random.Random(f"{run.prompt_tokens} in, {run.output_tokens} out, {flight} in flight")
    ends = [
        (round(2 * SHORTEST_SHARE * mean / (1 + SHORTEST_SHARE)), round(2 * mean / (1 + SHORTEST_SHARE)))
        if is_range
        else (mean - drift, mean + drift)
        for mean, drift in ((run.prompt_tokens, 0), (run.output_tokens, DRIFT))
    ]
    requests = tuple(
        Request(
            id=str(at),
            arrival_s=0.0,
            prompt_tokens=max(1, draw.randint(*ends[0])),
            output_tokens=max(2, draw.randint(*ends[1])),
        )
        for at in range(ROUNDS * flight)
    )
    return Traffic(requests=requests, concurrency=flight, origin=f"{flight} in flight")


def settings_of(run: MeasuredRun, traffic: Traffic) -> EngineSettings:
    """One engine for all records whose cache is wide enough; one of its own for each other."""
    plan, clients = engine_plan(run), clients_of(run)
    wanted = sum(sorted(r.prompt_tokens + r.output_tokens for r in traffic.requests)[-clients:])
    room = cache_blocks(deployed_blocks(run), run.device, plan) // groups_alike(run)
    blocks = max(_WIDE_CACHE, 2 ** (wanted // BLOCK).bit_length()) if room * BLOCK > wanted * 1.1 else room
    return EngineSettings(
        model=str(CONFIGS / "llama-3.1-8b"),  # of which the scheduler minds nothing but the blocks
        device=SeenDevice.of(find_device("h100-sxm")),
        dtype="bfloat16",
        cache_blocks=blocks,
        max_sequences=max(1024, clients),
        max_batched_tokens=BUDGET * plan.attention_dp // groups_alike(run),
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
    """What an earlier call has left, by the name of the record."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return {row["name"]: Replay(**row) for row in map(json.loads, lines)}


def replays(runs: Sequence[MeasuredRun], schedules: Path) -> Iterator[Replay]:
    """All of them, those of one engine together. Schedules that an earlier call has left are read, not made again."""
    todo = [(settings_of(run, traffic), run, traffic) for run in runs for traffic in (load_of(run),)]
    todo.sort(key=lambda pair: (pair[0].max_batched_tokens or 0, pair[0].cache_blocks or 0, pair[1].in_flight or 1))
    tables: dict[object, StepTable] = {}
    timers: dict[tuple[str, str], EngineTimer] = {}
    with ReplayProcess() as process:
        known = Schedules(process, schedules)
        for settings, run, traffic in todo:
            key = _deployment(run)
            if key not in tables:
                tables[key] = field_table(run, timers)
            yield judged(run, known.of(settings, traffic, tables[key]), tables[key])


def replay_once(process: ReplayProcess, run: MeasuredRun, traffic: Traffic) -> Replayed:
    """One of them, whole, with a clock of its own."""
    settings = settings_of(run, traffic)
    return process.replay(ReplayJob(settings=settings, traffic=traffic, table=field_table(run, {}), has_jumps=True))


def _deployment(run: MeasuredRun) -> tuple[object, ...]:
    return run.model, run.device, run.engine, run.precision, run.decode_plan, run.decode_gpus


def field_table(run: MeasuredRun, timers: dict[tuple[str, str], EngineTimer]) -> StepTable:
    key = (run.device, run.engine)
    if key not in timers:
        timers[key] = EngineTimer.of(*key)
    return replace(step_table(deployed_blocks(run), timers[key], engine_plan(run)), origin="")


def mean_over_rounds(run: MeasuredRun, each: Sequence[float]) -> float:
    """The first round and the last one count once, the one between for all that are like it."""
    flight, sent = clients_of(run), ROUNDS_SENT if has_drawn_lengths(run) else 0
    first, steady, last = (fmean(each[at * flight : (at + 1) * flight]) for at in range(ROUNDS))
    return (first + (sent - 2) * steady + last) / sent if sent else steady


def judged(run: MeasuredRun, schedule: Schedule, table: StepTable) -> Replay:
    """Means over the rounds that the load generator sent."""
    times = times_of(schedule, table, groups_alike(run))
    return Replay(
        name=run.name,
        tpot_s=mean_over_rounds(run, times.tpot),
        ttft_s=mean_over_rounds(run, times.ttft),
        e2e_s=mean_over_rounds(run, times.e2e),
        prompt_s=sum(table.seconds(0, 0, [chunk]) for chunk in _chunks(run.prompt_tokens)),
        queued_s=mean_over_rounds(run, times.queued),
        preemptions=schedule.preemptions,
        steps=len(schedule.batches),
    )


def _chunks(prompt_tokens: int) -> list[tuple[int, int]]:
    """A prompt in the pieces that a step has room for: new tokens, tokens before."""
    return [(min(BUDGET, prompt_tokens - before), before) for before in range(0, prompt_tokens, BUDGET)]


BLOCK = 16  # tokens
UTILISATION = 0.9  # of the memory
_PLAIN = {"bfloat16": 16.0, "float8_e4m3fn": 8.0, "fp8": 8.0}
_FEWEST = 64


def cache_blocks(blocks: EngineBlocks, device: str, plan: ParallelPlan) -> int:
    """What the weights leave of the memory of all ranks, in blocks of tokens; latent vectors are whole on each rank."""
    room = UTILISATION * find_device(device).memory_bytes * plan.stage_ranks - weight_bytes(blocks, plan)
    per_token = sum(
        layer.cached_bytes * layer.layers * _bits(layer.dtype) / 8 / blocks.cache_number_bytes
        for layer in blocks.attentions
    )
    copies = plan.tp if all(layer.latent is not None for layer in blocks.attentions) else 1
    return max(_FEWEST, int(room / copies / max(1.0, per_token) / BLOCK))


def weight_bytes(blocks: EngineBlocks, plan: ParallelPlan) -> float:
    """Of all ranks: what stands outside the experts is there once for each group with attention of its own."""
    matmuls = sum(
        matmul.columns * matmul.depth * matmul.layers * _bits(matmul.weight_format) / 8 for matmul in blocks.matmuls
    )
    experts = sum(
        3 * block.hidden * block.inner * block.experts * block.layers * _bits(block.weight_format) / 8
        for block in blocks.experts
    )
    return matmuls * plan.attention_dp + experts


def _bits(weight_format: str) -> float:
    return _PLAIN[weight_format] if weight_format in _PLAIN else stored(weight_format).bits_per_value()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Every step, and for each request after how many steps it came, was scheduled, had its first and last token."""

    batches: list[RankStep]
    came: list[int]
    scheduled: list[int]
    first: list[int]
    last: list[int]
    output_tokens: list[int]
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Times of requests, in order of arrival; seconds."""

    arrival: Sequence[float]
    scheduled: Sequence[float]
    first: Sequence[float]
    last: Sequence[float]
    outputs: Sequence[int]

    @property
    def ttft(self) -> list[float]:
        return [first - came for first, came in zip(self.first, self.arrival, strict=True)]

    @property
    def queued(self) -> list[float]:
        return [begun - came for begun, came in zip(self.scheduled, self.arrival, strict=True)]

    @property
    def e2e(self) -> list[float]:
        return [last - came for last, came in zip(self.last, self.arrival, strict=True)]

    @property
    def tpot(self) -> list[float]:
        return [
            (last - first) / (tokens - 1)
            for last, first, tokens in zip(self.last, self.first, self.outputs, strict=True)
            if tokens > 1
        ]


class Schedules:
    """Schedules by their loads, kept as files: a large one takes minutes."""

    def __init__(self, process: ReplayProcess, folder: Path) -> None:
        self._process, self._folder = process, folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, settings: EngineSettings, traffic: Traffic, table: StepTable) -> Schedule:
        """The schedule of a load; `table` moves the clock while it is made, and decides nothing."""
        load = [(request.prompt_tokens, request.output_tokens) for request in traffic.requests]
        key = msgspec.json.encode((settings, traffic.concurrency, load))
        file = self._folder / f"{hashlib.sha256(key).hexdigest()[:24]}.msgpack"
        if file.exists():
            return read_message(file, Schedule)
        job = ReplayJob(settings=settings, traffic=traffic, table=table, has_jumps=True, keeps_batches=True)
        schedule = schedule_of(self._process.replay(job))
        write_message(file, schedule)
        return schedule


def schedule_of(done: Replayed) -> Schedule:
    """A replay without its times."""
    ends = np.array([*done.steps.start_s, done.steps.start_s[-1] + done.steps.duration_s[-1]])

    def after(times: Sequence[float]) -> list[int]:
        """How many steps have ended by each time; a step ends where the next one starts."""
        above = np.clip(np.searchsorted(ends, times), 1, len(ends) - 1)
        is_below = np.abs(ends[above - 1] - times) <= np.abs(ends[above] - times)
        return [int(at) for at in above - is_below]

    requests = done.requests
    return Schedule(
        batches=done.batches,
        came=after(requests.arrival_s),
        scheduled=after(requests.scheduled_s),
        first=after(requests.first_token_s),
        last=after(requests.last_token_s),
        output_tokens=requests.output_tokens,
        preemptions=sum(requests.preemptions),
    )


def times_of(schedule: Schedule, table: StepTable, groups: int = 1) -> Served:
    """How long its requests take where steps take as long as the table says.

    Of `groups` of ranks that step together, one has the schedule and all have the table: they do the same.
    """
    time = JumpingTime(table, 1.0)
    ends = [0.0, *accumulate(time.seconds(_of_all(batch, groups)) for batch in schedule.batches)]
    arrival, scheduled, first, last = (
        [ends[at] for at in steps] for steps in (schedule.came, schedule.scheduled, schedule.first, schedule.last)
    )
    return Served(arrival=arrival, scheduled=scheduled, first=first, last=last, outputs=schedule.output_tokens)


def _of_all(batch: RankStep, groups: int) -> RankStep:
    if groups == 1:
        return batch
    return RankStep(
        decoding=groups * batch.decoding,
        cached_tokens=groups * batch.cached_tokens,
        chunks=groups * list(batch.chunks),
        drafted_tokens=groups * batch.drafted_tokens,
    )
