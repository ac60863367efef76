"""The times that a measured run cannot have beaten, from what its model needs and what its devices can do at most.

Work is divided over all GPUs of a replica, as if no op waited for another and every kernel reached the data sheet. What
its plan must send over the links goes next to it: of work and communication the longer counts. Two definitions:

**Strict.** As few experts as any routing can touch, and the sequences that were running rather than waiting: below
every time per output token (TPOT) and every time to first token (TTFT).

**Expected.** Experts by their expected number under uniform routing, every sequence in flight: below the time of a
request, TTFT + output x TPOT. Skewed routing touches fewer experts, so this one is a floor on average, no law.

**Cycle.** While one request passes through, as many prompts and outputs as are in flight pass with it: their FLOPs
alone are below the time of a request, whatever the routing and however phases overlap.

**Links.** What a recorded plan must send whatever the engine: where several ranks share the heads of an attention or
the rows of an MLP, each holds a part of the sum for every token, and the parts have to be added up. Nothing else is
certain: tokens may find all of their experts on their own rank, and latent attention may be replicated. Values are sent
in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from benchmarks.bounds.closed_form import BF16_BYTES, closed_form
from benchmarks.records import CONFIGS, MeasuredRun, ServedPlan, configuration
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.hardware import Device
from llm_perf_opt.core.hardware.links import parse_cluster
from llm_perf_opt.timing.collective_time import collective_time
from llm_perf_opt.timing.lower_bound import bytes_from_memory, fastest_peak, is_known

_MANY_TOKENS = 10**6  # bounds of collectives are whole nanoseconds, those of this many tokens exact enough
_NANO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLinks:
    """Seconds that one token of a replica keeps the links of its ranks busy at least, of a prompt and of a step."""

    prompt_token_s: float = 0.0
    step_token_s: float = 0.0


NO_LINKS = PlanLinks()


def plan_links(run: MeasuredRun) -> PlanLinks:
    """Of the plans that the run is recorded with."""
    return PlanLinks(
        prompt_token_s=link_token_s(run.model, run.device, run.prefill_plan, run.prefill_gpus),
        step_token_s=link_token_s(run.model, run.device, run.decode_plan, run.decode_gpus),
    )


@cache
def link_token_s(model: str, device: str, plan: ServedPlan, gpus: int) -> float:
    """The reductions of one token, on the ranks of one attention; with several attentions each has its own tokens."""
    if plan.tensor == 1:
        return 0.0
    reductions, values = shared_blocks(model, is_alone=plan.tensor == gpus, experts_split=plan.experts == 1)
    collective = Collective(
        kind=CollectiveKind.ALL_REDUCE,
        payload_bytes=_MANY_TOKENS * values * BF16_BYTES,
        group=group_of(range(plan.tensor)),
    )
    bound_ns = collective_time(collective, parse_cluster(f"{plan.tensor}x {device}")).bound_ns or 0
    return reductions * bound_ns * _NANO / _MANY_TOKENS / (gpus // plan.tensor)


@cache
def shared_blocks(model: str, *, is_alone: bool, experts_split: bool) -> tuple[int, int]:
    """Blocks of a model whose partial sums must be added up, and values of a token in each of them.

    Attention counts where it is not latent. An MLP counts where its ranks are those of one attention (`is_alone`), and
    routed experts where each of them is split over those ranks.
    """
    config = configuration(model)
    layers = closed_form(CONFIGS / model).layers
    attentions = 0 if config.get("kv_lora_rank") else len(layers)
    dense = sum(not layer.experts for layer in layers)
    routed = len(layers) - dense
    return attentions + is_alone * (dense + experts_split * routed), config["hidden_size"]


FEWEST, UNIFORM = "fewest", "uniform"
FP4, FP8, BF16 = "float4_e2m1fn_x2", "float8_e4m3fn", "bfloat16"
# The types in which a run of a precision may multiply; weights alone in int4 multiply in 16 bits.
MATMUL_TYPES = {"bf16": (BF16,), "int4": (BF16,), "fp8": (FP8, BF16), "fp4": (FP4, FP8, BF16)}
ALL_EXPERTS_TOKENS = 10**6  # after this many tokens no expert is left untouched


class Work(Protocol):
    """What one forward needs."""

    @property
    def flops(self) -> int: ...
    @property
    def weight_bytes(self) -> int | float | None: ...
    @property
    def cache_bytes(self) -> int | None: ...


class Needs(Protocol):
    """What a decoder needs, from a trace or from formulas."""

    def step(self, *, batch: int, context: int, routing: str) -> Work: ...
    def prefill(self, *, batch: int, prompt: int, routing: str) -> Work: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """What the bounds say of one run, in seconds; None where the run has no such time.

    `batch` is what the strict bound took to be running, `fitting` what memory could hold. `token_s` are seconds of one
    GPU for one output token at full load. `step_links_s` and `prompt_links_s` are what a step and a prompt need on the
    links alone.
    """

    tpot_s: float | None
    ttft_s: float | None
    e2e_s: float | None
    cycle_s: float | None
    token_s: float | None
    expected_token_s: float | None
    batch: int
    fitting: int
    touched: tuple[str, ...]
    step_links_s: float = 0.0
    prompt_links_s: float = 0.0


def floors(
    run: MeasuredRun,
    needs: Needs,
    device: Device,
    fitting: int,
    without: str | None = None,
    links: PlanLinks = NO_LINKS,
) -> Floors:
    """The bounds of a run whose GPUs hold `fitting` sequences of its mean length, `without` the rule of that name."""
    in_flight = run.in_flight or 1
    batch = in_flight if without == running_on_average.__name__ else running_on_average(run)
    has_rate = run.tokens_per_s_per_gpu is not None
    at_most = batch_that_fits(run, fitting)
    names = ((running_on_average, batch != in_flight), (batch_that_fits, has_rate and at_most != run.in_flight))
    step_links_s, prompt_links_s = batch * links.step_token_s, run.prompt_tokens * links.prompt_token_s
    of_request = prompt_links_s + run.output_tokens * links.step_token_s
    of_token = of_request / run.output_tokens * run.decode_gpus
    least_cycle = None if run.e2e_s is None or run.is_disaggregated else cycle_s(run, needs, device)
    return Floors(
        tpot_s=None if run.tpot_s is None else max(step_s(run, needs, device, batch, FEWEST), step_links_s),
        ttft_s=None if run.ttft_s is None else max(prefill_s(run, needs, device, FEWEST), prompt_links_s),
        e2e_s=None if run.e2e_s is None else request_s(run, needs, device, links),
        cycle_s=None if least_cycle is None else max(least_cycle, in_flight * of_request),
        token_s=max(token_s(run, needs, device, at_most, FEWEST), of_token) if has_rate else None,
        expected_token_s=max(token_s(run, needs, device, at_most, UNIFORM), of_token) if has_rate else None,
        step_links_s=step_links_s,
        prompt_links_s=prompt_links_s,
        batch=batch,
        fitting=fitting,
        touched=tuple(rule.__name__ for rule, is_touched in names if is_touched),
    )


def running_on_average(run: MeasuredRun) -> int:
    """Requests that wait for their first token are in flight but not in a step: Little's law gives those that are."""
    in_flight = run.in_flight or 1
    if run.e2e_s is None or run.tpot_s is None:
        return in_flight
    return max(1, int(in_flight * run.output_tokens * run.tpot_s / run.e2e_s))


def batch_that_fits(run: MeasuredRun, fitting: int) -> int:
    """At full load sequences run as far as memory holds their caches next to the weights, and no more."""
    return max(1, fitting if run.in_flight is None else min(fitting, run.in_flight))


EVALUATION_RULES: tuple[Callable[..., int], ...] = (running_on_average, batch_that_fits)


def step_s(run: MeasuredRun, needs: Needs, device: Device, batch: int, routing: str) -> float:
    """One decode step per token; with drafts, bytes are shared by as many tokens as a step may give.

    Every token that is kept was computed, so drafts save no FLOPs; each of them may touch experts of its own.
    """
    tokens = 1 + run.drafts
    work = needs.step(batch=batch, context=run.mean_context, routing=routing)
    weights = needs.step(batch=batch * tokens, context=run.mean_context, routing=routing).weight_bytes
    bytes_read = (weights or 0) + (work.cache_bytes or 0)
    return _seconds(work.flops, bytes_read, run, device, run.decode_gpus, share=tokens)


def prefill_s(run: MeasuredRun, needs: Needs, device: Device, routing: str) -> float:
    """The prompt of one request, on all GPUs that work on prompts."""
    work = needs.prefill(batch=1, prompt=run.prompt_tokens, routing=routing)
    return _seconds(work.flops, work.weight_bytes or 0, run, device, run.prefill_gpus)


def request_s(run: MeasuredRun, needs: Needs, device: Device, links: PlanLinks = NO_LINKS) -> float:
    """Its own prompt, then a step of everything in flight for each token of its output."""
    in_flight = run.in_flight or 1
    step = max(step_s(run, needs, device, in_flight, UNIFORM), in_flight * links.step_token_s)
    prompt = max(prefill_s(run, needs, device, UNIFORM), run.prompt_tokens * links.prompt_token_s)
    return prompt + run.output_tokens * step


def cycle_s(run: MeasuredRun, needs: Needs, device: Device) -> float:
    """FLOPs of every prompt and output in flight; in a closed loop that much is done while one request passes."""
    prompt = needs.prefill(batch=1, prompt=run.prompt_tokens, routing=FEWEST).flops
    step = needs.step(batch=1, context=run.mean_context, routing=FEWEST).flops
    flops = (run.in_flight or 1) * (prompt + run.output_tokens * step)
    return flops / (run.decode_gpus * peak(run, device))


def token_s(run: MeasuredRun, needs: Needs, device: Device, batch: int, routing: str) -> float:
    """GPU seconds of one output token at full load: its share of the prompt, and its share of a full step."""
    step = needs.step(batch=batch, context=run.mean_context, routing=routing)
    prompt = needs.prefill(batch=1, prompt=run.prompt_tokens, routing=routing)
    flops = prompt.flops / run.output_tokens + step.flops / batch
    bytes_read = bytes_from_memory(
        int((step.weight_bytes or 0) + (step.cache_bytes or 0)), device, forwards=run.decode_gpus
    )
    return max(flops / peak(run, device), bytes_read / batch / device.bandwidth_bytes_per_s)


def sequences_that_fit(run: MeasuredRun, needs: Needs, held_bytes: int, device: Device) -> int:
    """How many caches of `held_bytes` the decode GPUs hold next to all weights, if nothing else took room."""
    weights = needs.step(batch=ALL_EXPERTS_TOKENS, context=1, routing=UNIFORM).weight_bytes or 0
    return int(max(0, device.memory_bytes * run.decode_gpus - weights) // held_bytes)


def peak(run: MeasuredRun, device: Device) -> int:
    """The fastest matmuls that the run's precision allows on the device."""
    return max(fastest_peak(dtype, device) for dtype in MATMUL_TYPES[run.precision] if is_known(dtype, device))


def _seconds(flops: float, bytes_read: float, run: MeasuredRun, device: Device, gpus: int, *, share: int = 1) -> float:
    """The larger of the two times on `gpus` devices, whose caches may hold part of the bytes already."""
    from_memory = bytes_from_memory(int(bytes_read), device, forwards=gpus)
    return max(flops / (gpus * peak(run, device)), from_memory / share / (gpus * device.bandwidth_bytes_per_s))
