"""Real processes under a parallel plan: gloo on the loopback, one thread each, and what every rank did and held."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty
from typing import Any

import torch

from benchmarks.breadth.parallel import SeenCollective, Watch, bytes_held, distributed_model, running_modules

from .plan_cases import PlanCase

COLLECTIVE_LIMIT_S = 60  # a rank that waits longer for another one raises
LIMIT_S = 300


@dataclass(slots=True, kw_only=True)
class SeenRank:
    """What one rank did in prefill and decode, and what it held.

    `routing` has one entry per choice of experts: the experts of every row.
    """

    weight_bytes: int = 0
    cache_bytes: int = 0
    prefill: list[SeenCollective] = field(default_factory=list)
    decode: list[SeenCollective] = field(default_factory=list)
    routing: dict[str, list[list[list[int]]]] = field(default_factory=dict)


class RanksFailed(Exception):
    """A rank raised, or the ranks did not end in time."""


def run_real_ranks(cases: Sequence[PlanCase]) -> dict[str, list[SeenRank]]:
    """Case -> what each rank saw. As many processes as the largest plan needs serve all cases, one world at a time."""
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    ports = {world_size: _free_port() for world_size in sorted({case.world_size for case in cases})}
    ranks = [
        context.Process(target=_rank_main, args=(rank, ports, cases, answers), daemon=True)
        for rank in range(max(ports))
    ]
    for process in ranks:
        process.start()
    try:
        found = dict(_answers(answers, len(ranks)))
    finally:
        for process in ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
    return {case.name: [found[rank][case.name] for rank in range(case.world_size)] for case in cases}


def _answers(answers: Any, count: int) -> Iterator[tuple[int, dict[str, SeenRank]]]:
    end = time.monotonic() + LIMIT_S
    for _ in range(count):
        try:
            rank, seen, failure = answers.get(timeout=max(end - time.monotonic(), 0.1))
        except Empty:
            raise RanksFailed(f"the ranks did not end within {LIMIT_S} s") from None
        if failure:
            raise RanksFailed(f"rank {rank}:\n{failure}")
        yield rank, seen


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank_main(rank: int, ports: Mapping[int, int], cases: Sequence[PlanCase], answers: Any) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    seen: dict[str, SeenRank] = {}
    try:
        for world_size, port in ports.items():
            if rank < world_size:
                seen |= _in_world(rank, world_size, port, [case for case in cases if case.world_size == world_size])
    except Exception:  # noqa: BLE001  the last frame of a process: whatever it was goes to the parent
        answers.put((rank, {}, traceback.format_exc()))
        return
    answers.put((rank, seen, ""))


def _in_world(rank: int, world_size: int, port: int, cases: Sequence[PlanCase]) -> dict[str, SeenRank]:
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=COLLECTIVE_LIMIT_S),
    )
    seen = {case.name: _run(case) for case in cases}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return seen


def _run(case: PlanCase) -> SeenRank:
    """One prefill and one decode step on its cache, as transformers distributes the model over the ranks."""
    torch.manual_seed(0)  # every rank draws the whole model and keeps its share
    model = distributed_model(case.build, case.sizes)
    seen = SeenRank(weight_bytes=bytes_held(model.parameters()))
    with torch.no_grad(), running_modules(model) as stack:
        with Watch(stack) as prefill:
            output = model(**case.prompt(), use_cache=True)
        with Watch(stack) as decode:
            output = model(**case.next_token(), past_key_values=output.past_key_values, use_cache=True)
    seen.prefill, seen.decode = prefill.collectives, decode.collectives
    seen.routing = {"prefill": _listed(prefill), "decode": _listed(decode)}
    seen.cache_bytes = bytes_held(cached_tensors(output.past_key_values))
    return seen


def cached_tensors(cache: Any) -> Iterator[torch.Tensor]:
    for layer in cache.layers:
        if layer.is_initialized:
            yield from (layer.keys, layer.values)


def _listed(watch: Watch) -> list[list[list[int]]]:
    return [chosen.tolist() for chosen in watch.choices]
