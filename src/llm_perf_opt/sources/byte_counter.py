"""Bytes that every op of a run reads and writes, added up from the tensors at the dispatcher, stage by stage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from llm_perf_opt.core.protocols import ModelAdapter, Target, Workload
from llm_perf_opt.core.source_figures import Method, Testimony
from llm_perf_opt.harness.isolation import OpenStages, build_on_ghosts, run_watched
from llm_perf_opt.harness.op_watch import OpWatch
from llm_perf_opt.sources.isolated_stages import ASKING_ERRORS, failed_phase, reason_of
from llm_perf_opt.sources.moved_bytes import moved_bytes
from llm_perf_opt.weightless import Engine, routing_policy

SOURCE = "byte-counter"


class ByteCounter:
    """Watches a whole run on ghosts; it counts bytes and no FLOPs, and has no list of prices to look into."""

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase, in the order in which the target declares them."""
        return tuple(
            testimony
            for target in adapter.targets(workload)
            for testimony in _of_phase(target, self._engine, self._routing)
        )


def _of_phase(target: Target, engine: Engine, routing: str) -> Iterator[Testimony]:
    started = time.perf_counter()
    try:
        engine.oracle.routing = routing_policy(routing, target.phase)
        tally = _tally(target, engine)
    except ASKING_ERRORS as error:
        yield from failed_phase(target, SOURCE, reason_of(error))
        return
    seconds = (time.perf_counter() - started) / max(1, len(tally))
    for name in (*(stage.name for stage in target.stages), target.phase):
        if name in tally:
            yield Testimony(
                source=SOURCE,
                phase=target.phase,
                stage=name,
                method=Method.EXTRACTED,
                bytes_moved=tally[name],
                routing=engine.oracle.routing.name,
                seconds=seconds,
            )


def _tally(target: Target, engine: Engine) -> Counter[str]:
    """Stage -> bytes moved; a stage that was called and ran nothing has zero."""
    model = build_on_ghosts(target, engine)

    def forward() -> Counter[str]:
        bytes_of, stages = Counter[str](), OpenStages(target)

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stages.enter(path)
            bytes_of[stages.current] += 0

        def on_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
            bytes_of[stages.current] += moved_bytes(func, args, kwargs, output)

        given = target.start(model)
        with OpWatch(on_op):
            run_watched(target, model, given, before, lambda path, output: stages.leave())
        return bytes_of

    return engine.run(forward)
