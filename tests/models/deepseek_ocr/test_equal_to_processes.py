"""Real processes that share the tiny twin compute what one device computes, and one weightless rank sends what they do.

That the logits are equal shows that the plan is right; that the collectives are, that the trace is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.breadth.parallel import SeenCollective
from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.collectives import collective_of
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.target import Target
from llm_perf_opt.costs.memory.need import run_memory
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.harness.tracers.weightless_tracer import WeightlessTracer
from llm_perf_opt.models.deepseek_ocr.parallel import spread_model
from llm_perf_opt.models.deepseek_ocr.targets import decode, prefill, prepare_decode

from .gloo_ranks import RankCase, SeenRank, run_both, run_processes
from .tiny_twin import TINY, tiny_model


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_ranks_compute_and_send_what_they_should(tmp_path: Path) -> None:
    """In one test: starting the processes takes longer than all cases."""
    for case, processes in run_processes(tmp_path).items():
        expected = run_both(tiny_model(), case.inputs())
        for rank, process in enumerate(processes):
            assert process.prefill and process.decode, "a plan without a collective shows nothing"
            torch.testing.assert_close(process.logits, expected[:2], rtol=1e-4, atol=1e-5)
            assert _weightless(case, rank) == _figures(process), f"rank {rank} of {case}"


def _figures(seen: SeenRank) -> dict[str, Any]:
    return {
        "weights": seen.weight_bytes,
        "cache": seen.cache_bytes,
        "prefill": seen.prefill,
        "decode": seen.decode,
    }


def _weightless(case: RankCase, rank: int) -> dict[str, Any]:
    """The same from traces of one rank. Routing may differ: no collective depends on it."""
    plan = ParallelPlan(tp=case.tp, ep=case.ep, rank=rank)
    world, inputs = FakeWorld(plan), case.inputs()
    model: list[Any] = []

    def build() -> Any:
        model[:] = model or [spread_model(tiny_model(), plan, TINY, are_views_split=case.are_views_split)]
        return model[0]

    shared = {"model": "tiny", "workload": {}, "build": build, "world": world}
    heads = case.tp if TINY.decoder.num_attention_heads % case.tp == 0 else 1
    graphs = [
        WeightlessTracer(device="cpu").trace(Target(**shared, **phase))
        for phase in (
            {"phase": "prefill", "invoke": lambda model: prefill(model, inputs)},
            {
                "phase": "decode",
                "prepare": lambda model: prepare_decode(model, inputs, TINY.decoder, 1, heads),
                "invoke": lambda model, start: decode(model, start, inputs),
            },
        )
    ]
    cache = run_memory(graphs).cache
    assert cache is not None
    return {
        "weights": run_memory(graphs).phases[0].weight_bytes,
        "cache": cache.bytes + cache.bytes_per_token,
        "prefill": list(_collectives(graphs[0])),
        "decode": list(_collectives(graphs[1])),
    }


def _collectives(graph: CallGraph) -> Iterator[SeenCollective]:
    for kind, call in zip(graph.ops.kind, graph.ops.call, strict=True):
        op = graph.op_kinds[kind]
        if (found := collective_of(op)) is not None:
            group = found.group
            yield SeenCollective(
                op=op.name,
                payload_bytes=found.payload_bytes,
                ranks=tuple(range(group.first, group.last + 1)),
                module=graph.paths[graph.calls.path[call]],
            )
