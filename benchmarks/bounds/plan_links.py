"""What a recorded plan must send over its links, whatever the engine: partial sums of shared blocks, and no more.

Where several ranks share the heads of an attention or the rows of an MLP, each holds a part of the sum for every token,
and the parts have to be added up. Nothing else is certain: tokens may find all of their experts on their own rank, and
latent attention may be replicated. Values are sent in 16 bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from benchmarks.bounds.closed_form import BF16_BYTES, closed_form
from benchmarks.bounds.measured_run import MeasuredRun, ServedPlan
from benchmarks.bounds.traced_models import CONFIGS
from llm_perf_opt.analyses.time.collective_time import collective_time
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.hardware.links import parse_cluster

_MANY_TOKENS = 10**6  # bounds of collectives are whole nanoseconds, those of so many tokens exact enough
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
        prompt_token_s=token_s(run.model, run.device, run.prefill_plan, run.prefill_gpus),
        step_token_s=token_s(run.model, run.device, run.decode_plan, run.decode_gpus),
    )


@cache
def token_s(model: str, device: str, plan: ServedPlan, gpus: int) -> float:
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
    config = json.loads((CONFIGS / model / "config.json").read_text(encoding="utf-8"))
    config |= config.get("text_config", {})
    layers = closed_form(CONFIGS / model).layers
    attentions = 0 if config.get("kv_lora_rank") else len(layers)
    dense = sum(not layer.experts for layer in layers)
    routed = len(layers) - dense
    return attentions + is_alone * (dense + experts_split * routed), config["hidden_size"]
