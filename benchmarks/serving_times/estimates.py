"""Every aggregated run with its estimate: a steady state, and where the times of its step and prompt came from."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.bounds.evaluation import decode_graph
from benchmarks.records import SERVING, MeasuredRun, read_silicon
from llm_perf_opt.core.hardware import find_device
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.capacity.steady_state import MeanRequest, ReplicaLimits, SteadyReplica, SteadyState
from llm_perf_opt.serving.engines import default_limits
from llm_perf_opt.timing.kernels.times import LAUNCH_GAP_S
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, engine_blocks
from llm_perf_opt.timing.step.engine_step import Forward
from llm_perf_opt.timing.step.engine_time import EngineTimer, ForwardTime, RankForward
from llm_perf_opt.timing.step.request_time import first_token_shares
from llm_perf_opt.timing.step.step_table import StepTable
from llm_perf_opt.timing.step.step_tables import step_table

WAITED = 0.4  # of a request: such a server is full, and its times say how long the queue was
FROZEN_DEVICES = frozenset({"b300-sxm", "gb300"})
FROZEN_MODELS = frozenset({"kimi-k2.5", "glm-5", "qwen3.5-397b-a17b"})
INFERENCEX_LENGTHS = frozenset({921, 7372})  # nominal 1,024 and 8,192, drawn from a range


def is_frozen(run: MeasuredRun) -> bool:
    """Whether a run belongs to the systems and models that no choice was made with."""
    return run.device in FROZEN_DEVICES or run.model in FROZEN_MODELS


def has_drawn_lengths(run: MeasuredRun) -> bool:
    """Whether its load generator drew lengths from a range."""
    return run.prompt_tokens in INFERENCEX_LENGTHS


def sender(run: MeasuredRun) -> str:
    return f"{run.engine} {'range' if has_drawn_lengths(run) else 'fixed'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A run with the steady state that `serve` prints for it, and the kernels of one step and of one prompt.

    `gap_s` is the rest before each kernel; another than the package's changes both times by what their kernels rest.
    """

    run: MeasuredRun
    state: SteadyState
    step: ForwardTime
    prompt: ForwardTime
    gap_s: float = LAUNCH_GAP_S

    @property
    def in_flight(self) -> int:
        """Requests at once."""
        return self.run.in_flight or 1

    @property
    def tpot_s(self) -> float:
        """Expected time per output token."""
        return self.state.step_s + (self.gap_s - LAUNCH_GAP_S) * self.step.kernels

    @property
    def prompt_s(self) -> float:
        """One prompt by itself."""
        return self.state.alone_s + (self.gap_s - LAUNCH_GAP_S) * self.prompt.kernels

    @property
    def is_frozen(self) -> bool:
        """Whether the run belongs to the systems and models that no choice was made with."""
        return is_frozen(self.run)

    @property
    def is_saturated(self) -> bool:
        """Whether requests mostly waited: such a record says how long the queue was."""
        return (self.run.ttft_s or 0) / (self.run.e2e_s or 1) > WAITED

    @property
    def is_clean(self) -> bool:
        """Whether its time is that of steps: neither waiting, nor drafted, nor a repetition, nor a whole system."""
        run = self.run
        return not (self.is_saturated or run.drafts or run.is_repeat or run.is_whole_system)

    @property
    def sender(self) -> str:
        return sender(self.run)


def aggregated_runs() -> list[MeasuredRun]:
    """The runs whose prompts and steps share their GPUs, all of them."""
    return [run for run in read_silicon() if not run.is_disaggregated]


def estimated(runs: Iterable[MeasuredRun]) -> list[Estimated]:
    """Every run, in the order of systems and engines."""
    groups: Mapping[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        groups[run.device, run.engine].append(run)
    records: list[Estimated] = []
    for (device, engine), some in groups.items():
        timer = EngineTimer.of(device, engine)
        times = timer.times([query for run in some for query in _asked(run)])
        tables: dict[tuple[int, ParallelPlan], StepTable] = {}
        for run, step, prompt in zip(some, times[::2], times[1::2], strict=True):
            blocks, plan = deployed_blocks(run), engine_plan(run)
            key = (id(blocks), plan)  # which are kept, and of which there are few
            if key not in tables:
                tables[key] = step_table(blocks, timer, plan)
            records.append(Estimated(run=run, state=steady_state(run, tables[key]), step=step, prompt=prompt))
    return records


def steady_state(run: MeasuredRun, table: StepTable) -> SteadyState:
    """What `serve` says of these users of one replica."""
    return replica(run, table).at(run.in_flight or 1)


def replica(run: MeasuredRun, table: StepTable) -> SteadyReplica:
    """The replica of a run. How large its cache was, no record says: all its requests are in it."""
    limits = default_limits(find_device(run.device))
    return SteadyReplica(
        table=table,
        mean=MeanRequest(prompt_tokens=run.prompt_tokens, output_tokens=run.output_tokens),
        limits=ReplicaLimits(
            sequences=limits.sequences, batched_tokens=limits.chunk_tokens, cache_tokens=10**12
        ).of_groups(table.groups),
        is_closed=True,
        client=first_token_shares(run.engine, has_drawn_lengths=has_drawn_lengths(run)),
    )


def _asked(run: MeasuredRun) -> tuple[RankForward, RankForward]:
    blocks, plan = deployed_blocks(run), engine_plan(run)
    step = Forward(sequences=run.in_flight or 1, queries=1, keys=run.mean_context)
    prompt = Forward(sequences=1, queries=run.prompt_tokens, keys=run.prompt_tokens)
    return (
        RankForward(blocks=blocks, forward=step, plan=plan),
        RankForward(blocks=blocks, forward=prompt, plan=plan),
    )


BF16, FP8, BLOCK_FP8, FP4, INT4, MXFP4 = "bfloat16", "fp8", "fp8-block128", "nvfp4", "int4-g32-sym", "mxfp4"
FP8_CACHE = "float8_e4m3fn"
_MULTIPLIED = {FP8: FP8_CACHE, BLOCK_FP8: FP8_CACHE, FP4: "float4_e2m1fn_x2", MXFP4: FP8_CACHE}
RELEASED_IN_BLOCKS = frozenset({"deepseek-r1", "qwen3-235b-a22b", "minimax-m2.5", "glm-5", "qwen3.5-397b-a17b"})
ATTENTION_IN_16_BITS = frozenset({"deepseek-r1", "minimax-m2.5", "kimi-k2.5", "glm-5", "qwen3.5-397b-a17b"})


@cache
def traced_blocks(model: str) -> EngineBlocks:
    """The blocks of one weightless decode step of the model's own code."""
    return engine_blocks(decode_graph(model))


def formats(model: str, precision: str) -> tuple[str, str, str]:
    """Of attention, of other matrices, of experts."""
    if model.startswith("gpt-oss"):
        return BF16, BF16, MXFP4  # published so, whatever a record calls its precision
    match precision:
        case "fp8":
            stored = BLOCK_FP8 if model in RELEASED_IN_BLOCKS else FP8
            return stored, stored, stored
        case "fp4":
            return BF16 if model in ATTENTION_IN_16_BITS else FP4, FP4, FP4
        case "int4":
            return BF16, BF16, INT4
    return BF16, BF16, BF16


def cache_format(run: MeasuredRun) -> str:
    """As the server was started. Where nobody says: TensorRT-LLM keeps 8 bits for quantised checkpoints, others 16."""
    if run.inferencex_engine is not None and not run.is_disaggregated:
        asked = run.model, run.device, run.engine, run.precision
        for server, versions, bits in _servers():
            if server == asked and (not versions or run.inferencex_engine in versions):
                return FP8_CACHE if bits == 8 else BF16
    is_small = run.engine == "trtllm" and run.precision in ("fp8", "fp4") and not run.model.startswith("gpt-oss")
    return FP8_CACHE if is_small else BF16


@cache
def _servers() -> tuple[tuple[tuple[str, ...], frozenset[str], int], ...]:
    """As published scripts start them: model, device, engine, precision; engine versions (none: any); bits of a value.

    Aggregated servers of InferenceX alone.
    """
    with (SERVING / "server_caches.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(
            (
                (line["model"], line["device"], line["engine"], line["precision"]),
                frozenset(line["engine_versions"].split()),
                int(line["cache_bits"]),
            )
            for line in csv.DictReader(lines)
        )


def deployed_blocks(run: MeasuredRun) -> EngineBlocks:
    """The model's blocks with weights and cache as the run stored them."""
    return _deployed(run.model, run.precision, cache_format(run))


@cache
def _deployed(model: str, precision: str, cached: str) -> EngineBlocks:
    blocks = traced_blocks(model)
    attention, matrices, experts = formats(model, precision)
    narrower = 2 if cached == FP8_CACHE else 1
    stored = {DecoderPart.ATTENTION: attention, DecoderPart.LATENT: attention, DecoderPart.MLP: matrices}
    return replace(
        blocks,
        matmuls=tuple(replace(matmul, **_stored(stored.get(matmul.part, BF16))) for matmul in blocks.matmuls),
        experts=tuple(replace(expert, **_stored(experts)) for expert in blocks.experts),
        attentions=tuple(
            replace(layer, dtype=cached, cached_bytes=layer.cached_bytes // narrower) for layer in blocks.attentions
        ),
        cache_number_bytes=blocks.cache_number_bytes // narrower,
    )


def _stored(weight_format: str) -> dict[str, str]:
    """The format of weights, and the type in which kernels for it multiply."""
    return {"weight_format": weight_format, "dtype": _MULTIPLIED.get(weight_format, BF16)}


def engine_plan(run: MeasuredRun) -> ParallelPlan:
    """The plan as recorded; a whole system without one shares nothing but its experts."""
    plan, gpus = run.decode_plan, run.decode_gpus
    groups = max(1, gpus // plan.tensor)
    return ParallelPlan(tp=plan.tensor, attention_dp=groups, ep=plan.tensor * groups if plan.experts > 1 else 1)
