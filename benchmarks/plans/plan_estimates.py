"""The step of a measured run by two descriptions of its plan: as serving engines shard a model, and as its own does.

**Engines** split every head, matrix and expert over the ranks of `tp`, those of latent attention too, and replicate
key heads where there are fewer than ranks. One reduction follows attention and one the MLP or the experts. With `dp`,
attention has sequences of its own, and rows travel to their experts and back.

**The model's own plan** is what transformers runs with the same sizes, traced: one rank, with its own collectives. It
has no `dp` attention, and refuses to split fewer key heads than ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from benchmarks.bounds.floors import FEWEST, running_on_average
from benchmarks.plans.rank_step import Load, Share, TwoDepths, step_band, two_depths
from benchmarks.records import MeasuredRun, configuration
from llm_perf_opt.core.collectives import Collective, CollectiveKind, group_of
from llm_perf_opt.core.hardware.links import Cluster, parse_cluster
from llm_perf_opt.costs.necessary.stage_needs import NecessaryWork
from llm_perf_opt.timing.lower_bound import LowerBound
from llm_perf_opt.timing.rank_bound import rank_bound
from llm_perf_opt.timing.rates import Band

GPUS = 8  # of the node that every run fits in
VALUE_BYTES = 2
_depths = cache(two_depths)


def as_engines_shard(run: MeasuredRun) -> Band:
    """From one trace of the whole model."""
    return step_band(whole_depths(run), load_of(run), share_of(run), engine_exchanges(run))


def as_the_model_shards(run: MeasuredRun) -> Band | None:
    """From a trace of one rank; None: the model's own code has no such plan."""
    depths = own_depths(run)
    if depths is None:
        return None
    return step_band(depths, load_of(run), Share(), depths.exchanges(load_of(run).batch))


def own_depths(run: MeasuredRun, *, is_smallest: bool = False) -> TwoDepths | None:
    """One rank of the model's own plan, where it has one of these sizes."""
    plan, gpus = run.decode_plan, run.decode_gpus
    if plan.tensor != gpus or plan.experts not in (1, gpus):
        return None
    sizes = {"tp": gpus} if gpus > 1 else {}
    experts = {"ep": gpus} if plan.experts > 1 else {}
    return _depths(run.model, run.precision, is_smallest=is_smallest, **sizes, **experts)


def whole_depths(run: MeasuredRun, *, is_smallest: bool = False) -> TwoDepths:
    """The whole model on one device."""
    depths = _depths(run.model, run.precision, is_smallest=is_smallest)
    assert depths is not None  # one device refuses nothing
    return depths


def load_of(run: MeasuredRun) -> Load:
    """Every sequence in flight, halfway through the output."""
    return Load(batch=run.in_flight or 1, context=run.mean_context, precision=run.precision, cluster=_node(run.device))


def share_of(run: MeasuredRun) -> Share:
    """What engines divide by what."""
    config, plan, gpus = configuration(run.model), run.decode_plan, run.decode_gpus
    is_latent = bool(config.get("kv_lora_rank"))  # one vector per token, which every rank needs whole
    return Share(
        batch=gpus // plan.tensor,
        weights=plan.tensor,
        heads=plan.tensor,
        cache=1 if is_latent else min(plan.tensor, config.get("num_key_value_heads", plan.tensor)),
        experts=gpus,
        whole_experts=plan.experts,
    )


def engine_exchanges(run: MeasuredRun) -> dict[Collective, float]:
    """The collectives of one step, all layers."""
    config, plan, gpus = configuration(run.model), run.decode_plan, run.decode_gpus
    layers, values = config["num_hidden_layers"], config["hidden_size"] * VALUE_BYTES
    attentions, batch = gpus // plan.tensor, run.in_flight or 1
    found: dict[Collective, float] = {}

    def add(kind: CollectiveKind, rows: int, ranks: int, count: int) -> None:
        if ranks > 1:
            one = Collective(kind=kind, payload_bytes=max(1, rows) * values, group=group_of(range(ranks)))
            found[one] = found.get(one, 0) + count

    add(CollectiveKind.ALL_REDUCE, batch // attentions, plan.tensor, layers)
    if attentions == 1:
        add(CollectiveKind.ALL_REDUCE, batch, gpus, layers)
    elif chosen := config.get("num_experts_per_tok"):
        add(CollectiveKind.ALL_TO_ALL, batch * chosen // gpus, gpus, 2 * layers)
    return found


@cache
def _node(device: str) -> Cluster:
    return parse_cluster(f"{GPUS}x {device}")


def rank_floor(run: MeasuredRun) -> LowerBound | None:
    """The bound of one step of a run on several GPUs; None: the model's own code has no such plan."""
    rank = own_depths(run, is_smallest=True)
    if rank is None:
        return None
    batch, load = running_on_average(run), load_of(run)
    exchanges = {one: round(count) for one, count in rank.exchanges(batch, least=True).items()}
    return rank_bound(
        _work(rank, batch, load),
        exchanges,
        load.cluster,
        whole=_work(whole_depths(run, is_smallest=True), batch, load),
        ranks=run.decode_gpus,
    )


def _work(depths: TwoDepths, batch: int, load: Load) -> NecessaryWork:
    """A step of all layers, every product at the fastest rate that the precision allows."""
    steps = [one.needs.step(batch=batch, context=load.context, routing=FEWEST) for one in (depths.shallow, depths.deep)]

    def whole(figure: Callable[[NecessaryWork], int | None]) -> int:
        return round(depths.of_all_layers(*(figure(step) or 0 for step in steps)))

    return NecessaryWork(
        flops_by_dtype={load.dtype: whole(lambda step: step.flops)},
        weight_bytes=whole(lambda step: step.weight_bytes),
        expert_bytes=whole(lambda step: step.expert_bytes),
        fewest_expert_bytes=whole(lambda step: step.fewest_expert_bytes),
        cache_bytes=whole(lambda step: step.cache_bytes),
        other_bytes=0,
    )


def floor_rows(runs: Sequence[MeasuredRun]) -> Iterator[dict[str, Any]]:
    """By model: runs that were checked, those that beat the bound, the tightest, and the largest part of the links."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        bound = rank_floor(run) if run.decode_gpus > 1 else None
        if bound is not None and run.tpot_s:
            found.setdefault(run.model, []).append((run.tpot_s / bound.seconds, bound.communication_s / bound.seconds))
    for model, ratios in sorted(found.items()):
        yield {
            "model": model,
            "runs": len(ratios),
            "violations": sum(ratio < 1 for ratio, _ in ratios),
            "lowest": round(min(ratio for ratio, _ in ratios), 3),
            "links": round(max(links for _, links in ratios), 3),
        }
