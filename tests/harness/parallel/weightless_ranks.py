"""The same cases as one weightless rank: no other process, no values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from benchmarks.breadth.parallel import SeenCollective, bytes_held
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import GroupRanks, collective_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.huggingface.parallel import spread_model

from .plan_cases import PlanCase
from .real_ranks import SeenRank, cached_tensors


class RowReplay:
    """The i-th choice of experts gives every row the experts that it got in a real run."""

    name = "rows of a real run"

    def __init__(self, choices: Sequence[Sequence[Sequence[int]]]) -> None:
        self._choices = choices

    def choose(self, rows: int, candidates: int, k: int, call_index: int) -> torch.Tensor:
        """Indices of shape [rows, k]."""
        chosen = torch.tensor(self._choices[call_index])
        assert chosen.shape == (rows, k)
        assert int(chosen.max()) < candidates
        return chosen


def run_weightless_rank(case: PlanCase, rank: int, routing: dict[str, list[list[list[int]]]]) -> SeenRank:
    """What the traces of prefill and decode say of one rank. `routing` as a real run recorded it."""
    sizes = {axis.removesuffix("_size"): size for axis, size in case.sizes.items()}
    world = FakeWorld(ParallelPlan(**sizes, rank=rank))
    seen = SeenRank()

    @cache
    def build() -> Any:
        return spread_model(case.build, world)

    def prefill(model: Any) -> Any:
        return model(**case.prompt(), use_cache=True).past_key_values

    def decode(model: Any, past: Any) -> Any:
        output = model(**case.next_token(), past_key_values=past, use_cache=True)
        seen.cache_bytes = bytes_held(cached_tensors(output.past_key_values))
        return output

    def traced(phase: str, choices: list[list[list[int]]], **calls: Any) -> CallGraph:
        target = Target(model=case.name, phase=phase, workload={}, build=build, world=world, **calls)
        return WeightlessTracer(routing=RowReplay(choices) if choices else "balanced", device="cpu").trace(target)

    before = routing.get("prefill", [])
    first = traced("prefill", before, invoke=prefill)
    second = traced("decode", before + routing.get("decode", []), prepare=prefill, invoke=decode)
    seen.weight_bytes = _weight_bytes(first)
    seen.prefill, seen.decode = list(_collectives(first)), list(_collectives(second))
    return seen


def _weight_bytes(graph: CallGraph) -> int:
    held = {parameter.storage for parameter in graph.parameters if not parameter.is_buffer}
    return sum(graph.storages.bytes[storage] for storage in held)


def _collectives(graph: CallGraph) -> Iterator[SeenCollective]:
    for row, call in zip(graph.ops.kind, graph.ops.call, strict=True):
        kind = graph.op_kinds[row]
        found = collective_of(kind)
        if found is not None:
            path = graph.paths[graph.calls.path[call]] if call >= 0 else ""
            yield SeenCollective(
                op=kind.name, payload_bytes=found.payload_bytes, ranks=_ranks(found.group), module=path
            )


def _ranks(group: GroupRanks) -> tuple[int, ...]:
    assert group.stride is not None
    return tuple(range(group.first, group.last + 1, group.stride))
