"""The strict bound of a step from a trace of one rank, held below every measured time per token of that plan.

The work is the smaller of what the traced rank does and its share of the whole, with the fewest experts and everything
stored as small as any checkpoint; the collectives are those of the trace that no engine can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.bounds.floors import FEWEST, running_on_average
from benchmarks.plans.plan_estimates import load_of, own_depths, whole_depths
from benchmarks.plans.rank_step import Load
from benchmarks.plans.shallow_models import TwoDepths
from benchmarks.records import MeasuredRun
from llm_perf_opt.analyses.necessary.stage_needs import NecessaryWork
from llm_perf_opt.analyses.time.lower_bound import LowerBound
from llm_perf_opt.analyses.time.rank_bound import rank_bound


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
