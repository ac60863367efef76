"""Real processes that share the tiny twin: gloo over a file, one thread each, and what every rank did and held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.breadth.parallel import SeenCollective, Watch, bytes_held, running_modules
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.models.deepseek_ocr.inputs import FIRST_TEXT_ID, OcrInputs
from llm_perf_opt.models.deepseek_ocr.parallel import spread_model
from tests.models.deepseek_ocr.tiny_twin import TINY, tiny_inputs, tiny_model


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCase:
    """One plan of the tiny twin and the pages that it reads."""

    tp: int
    ep: int = 1
    batch: int = 1
    are_views_split: bool = True

    def inputs(self) -> OcrInputs:
        return tiny_inputs(batch=self.batch)


CASES = (
    RankCase(tp=2),
    RankCase(tp=2, are_views_split=False),
    RankCase(tp=2, ep=2, batch=3),
    RankCase(tp=4, ep=2),  # two ranks share each expert; two heads for four ranks: attention is whole on each
    RankCase(tp=4, ep=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """What one rank did in prefill and one decode step, and what it held."""

    weight_bytes: int
    cache_bytes: int
    prefill: list[SeenCollective]
    decode: list[SeenCollective]
    logits: tuple[torch.Tensor, torch.Tensor]


def run_both(model: Any, inputs: OcrInputs) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Logits of the prefill, logits of one step on its cache, and the cache after that."""
    rest = {name: getattr(inputs, name) for name in ("images", "images_seq_mask", "images_spatial_crop")}
    with torch.no_grad():
        first = model(input_ids=inputs.input_ids, **rest)
        token = torch.full((inputs.input_ids.shape[0], 1), FIRST_TEXT_ID)
        second = model(input_ids=token, past_key_values=first.past_key_values, **rest)
    return first.logits, second.logits, second.past_key_values


def run_processes(folder: Path) -> dict[RankCase, list[SeenRank]]:
    """Case -> what each of its ranks saw. The same processes serve all cases, one world at a time."""
    ranks = max(case.tp for case in CASES)
    torch.multiprocessing.spawn(_rank_main, args=(str(folder),), nprocs=ranks)
    by_rank = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(ranks)]
    return {case: [seen[case] for seen in by_rank[: case.tp]] for case in CASES}


def _rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    seen: dict[RankCase, SeenRank] = {}
    for ranks in sorted({case.tp for case in CASES}):
        if rank < ranks:
            dist.init_process_group("gloo", init_method=f"file://{folder}/store-{ranks}", rank=rank, world_size=ranks)
            seen |= {case: _run(case) for case in CASES if case.tp == ranks}
            dist.barrier()
            dist.destroy_process_group()
    torch.save(seen, Path(folder) / f"rank-{rank}.pt")


def _run(case: RankCase) -> SeenRank:
    plan = ParallelPlan(tp=case.tp, ep=case.ep)
    model = spread_model(tiny_model(), plan, TINY, are_views_split=case.are_views_split)
    with running_modules(model) as stack, Watch(stack) as seen:
        prefill, decode, past = run_both(model, case.inputs())
    end = next(index for index, one in enumerate(seen.collectives) if one.module == "lm_head") + 1
    return SeenRank(
        weight_bytes=bytes_held(model.parameters()),
        cache_bytes=bytes_held(tensor for pair in past for tensor in pair),
        prefill=seen.collectives[:end],
        decode=seen.collectives[end:],
        logits=(prefill, decode),
    )
