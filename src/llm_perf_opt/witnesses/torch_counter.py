"""torch's own FLOP counter on each stage by itself, under the weightless engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from llm_perf_opt.execution.isolation import IsolatedCall
from llm_perf_opt.plugins import ModelAdapter, Workload
from llm_perf_opt.testimony import Family, Method, Testimony, family_of
from llm_perf_opt.weightless import Engine
from llm_perf_opt.witnesses.isolated_stages import ASKING_ERRORS, IsolatedStage, ask, reason_of
from llm_perf_opt.witnesses.looped_experts import has_grouped_experts, looped_experts
from llm_perf_opt.witnesses.torch_formulas import extra_formulas
from llm_perf_opt.witnesses.torch_prices import Tally, count

log = logging.getLogger(__name__)

SOURCE = "torch-counter"


class TorchCounter:
    """Asks `FlopCounterMode`. It prices `mm`, `addmm`, `bmm`, convolutions and CUDA attention, and nothing else.

    Other kernels of attention get its formula for those of CUDA. Experts run one after the other, where the model
    offers that, so that torch counts their products itself; a grouped product that is left is counted group by group.
    """

    def __init__(self, *, routing: str = "uniform", device: str = "cuda") -> None:
        self._routing = routing
        self._engine = Engine(device=device, routing=routing)

    def testify(self, adapter: ModelAdapter, workload: Workload) -> tuple[Testimony, ...]:
        """One testimony per stage of every phase, in the order in which they run."""
        return tuple(
            testimony
            for target in adapter.targets(workload)
            for testimony in ask(target, self._engine, SOURCE, _of_stage, self._routing)
        )


def _of_stage(stage: IsolatedStage, engine: Engine) -> Testimony:
    tally = Tally()
    for call in stage.calls:
        tally.add(_counted(call, engine), call.calls)
    return Testimony(
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
            log.info("%s: its experts do not run one by one: %s", call.path, reason_of(error))
    return count(engine, partial(_run, call))


def _notes(stage: IsolatedStage, tally: Tally) -> Iterator[str]:
    is_grouped = any(family_of(name) is Family.GROUPED for name in tally.calls)
    if not is_grouped and any(has_grouped_experts(call.module) for call in stage.calls):
        yield "experts were run one after the other, as plain products"
    if borrowed := sorted(name for name in tally.flops if name in map(str, extra_formulas())):
        yield f"torch's counter has no formula for {', '.join(borrowed)} and was given one"


def _run(call: IsolatedCall) -> object:
    args, kwargs = call.fresh_arguments()
    call.module.requires_grad_(False)  # or the counter hangs hooks on the gradient of weights that are arguments
    return call.module(*args, **kwargs)
