"""torch's own FLOP counter on each stage by itself, under the weightless engine."""

from __future__ import annotations

from functools import partial

from llm_perf_opt.execution.isolation import IsolatedCall
from llm_perf_opt.plugins import ModelAdapter, Workload
from llm_perf_opt.testimony import Method, Testimony
from llm_perf_opt.weightless import Engine
from llm_perf_opt.witnesses.isolated_stages import IsolatedStage, ask
from llm_perf_opt.witnesses.torch_prices import Tally, count

SOURCE = "torch-counter"


class TorchCounter:
    """Asks `FlopCounterMode`. It prices `mm`, `addmm`, `bmm`, convolutions and CUDA attention, and nothing else."""

    def __init__(self, *, routing: str = "balanced", device: str = "cuda") -> None:
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
        tally.add(count(engine, partial(_run, call)), call.calls)
    return Testimony(
        source=SOURCE,
        phase=stage.phase,
        stage=stage.name,
        method=Method.ISOLATED,
        flops=sum(tally.flops.values()),
        operators=tally.operators(),
        blind_spots=(*tally.blind_spots(), *stage.loose),
        notes=stage.notes(),
    )


def _run(call: IsolatedCall) -> object:
    args, kwargs = call.fresh_arguments()
    call.module.requires_grad_(False)  # or the counter hangs hooks on the gradient of weights that are arguments
    return call.module(*args, **kwargs)
