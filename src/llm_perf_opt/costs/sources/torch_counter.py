"""torch's own FLOP counter on each stage by itself, under the weightless engine, experts one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.plain_text import error_line
from llm_perf_opt.core.protocols import ModelAdapter
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import Method, SourceFigures, WorkFamily, family_of
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.costs.sources.isolated_stages import ASKING_ERRORS, GhostCounter, IsolatedStage, ask
from llm_perf_opt.costs.sources.torch_prices import Tally, count, extra_formulas
from llm_perf_opt.harness.isolation import IsolatedCall
from llm_perf_opt.weightless import Engine

log = logging.getLogger(__name__)


_SWITCH, _LOOP = "_experts_implementation", "eager"  # of transformers, from version 5 on


def has_grouped_experts(module: torch.nn.Module) -> bool:
    """Whether the model offers a loop over its experts and is configured to use something else."""
    return bool(_switched(module))


@contextmanager
def looped_experts(module: torch.nn.Module) -> Iterator[None]:
    """Run what is inside with every expert called by itself; on every way out the model gets its own setting back."""
    before = [(config, getattr(config, _SWITCH)) for config in _switched(module)]
    try:
        for config, _ in before:
            setattr(config, _SWITCH, _LOOP)
        yield
    finally:
        for config, chosen in before:
            setattr(config, _SWITCH, chosen)


def _switched(module: torch.nn.Module) -> list[Any]:
    """The configurations below a module that choose how experts run, each once."""
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, _SWITCH, None) not in (None, _LOOP)]


SOURCE = "torch-counter"


class TorchCounter(GhostCounter):
    """Asks `FlopCounterMode`. It prices `mm`, `addmm`, `bmm`, convolutions and CUDA attention, and nothing else.

    Other kernels of attention get its formula for CUDA attention. Experts run one after the other, where the model
    offers that, so that torch counts their matmuls itself; a grouped matmul that is left is counted group by group.
    """

    def figures(self, adapter: ModelAdapter, workload: Workload) -> tuple[SourceFigures, ...]:
        """The figures of each stage of every phase, in the order in which they run."""
        with OneRun(), Interruptible():
            return tuple(
                figures
                for target in adapter.targets(workload)
                for figures in ask(target, self._engine, SOURCE, _of_stage, self._routing)
            )


def _of_stage(stage: IsolatedStage, engine: Engine) -> SourceFigures:
    tally = Tally()
    for call in stage.calls:
        tally.add(_counted(call, engine), call.calls)
    return SourceFigures(
        source=SOURCE,
        phase=stage.phase,
        stage=stage.name,
        method=Method.ISOLATED,
        flops=sum(tally.flops.values()),
        operators=tally.operators(),
        blind_spots=(*tally.blind_spots(), *stage.loose),
        notes=(*stage.notes(), *_notes(stage, tally)),
    )


def _counted(call: IsolatedCall, engine: Engine) -> Tally:
    """One call, its experts in a loop; as the model runs them where its loop does not run on ghosts."""
    if has_grouped_experts(call.module):
        try:
            with looped_experts(call.module):
                return count(engine, partial(_run, call))
        except ASKING_ERRORS as error:
            log.info("%s: its experts do not run one by one: %s", call.path, error_line(error))
    return count(engine, partial(_run, call))


def _notes(stage: IsolatedStage, tally: Tally) -> Iterator[str]:
    is_grouped = any(family_of(name) is WorkFamily.GROUPED for name in tally.calls)
    if not is_grouped and any(has_grouped_experts(call.module) for call in stage.calls):
        yield "experts were run one after the other, as plain matmuls"
    if borrowed := sorted(name for name in tally.flops if name in map(str, extra_formulas())):
        yield f"torch's counter has no formula for {', '.join(borrowed)} and was given one"


def _run(call: IsolatedCall) -> object:
    args, kwargs = call.fresh_arguments()
    call.module.requires_grad_(False)  # or the counter hangs hooks on the gradient of weights that are arguments
    return call.module(*args, **kwargs)
