"""A training step in a script's own words: a function that calls `backward` and an optimizer's `step`.

It runs on a copy of its arguments, on ghosts: the model, the optimizer and the batch of the script stay as they are. An
optimizer without states steps once before the step that is recorded, so its states are there as in every later step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.training_run import TrainingStart, record_step
from llm_perf_opt.harness.twins import tensors_in, training_twin
from llm_perf_opt.weightless import Engine

Step = Callable[..., object]


def record_own_step(
    name: str,
    step: Step,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    routing: str | None = None,
    device: str = "cuda",
) -> RecordedTrainingStep:
    """Run `step(*args, **kwargs)` without weights; `device` is what its code sees."""
    arguments = _by_name(step, args, kwargs)

    @cache
    def twins() -> dict[str, Any]:
        return training_twin(arguments)

    def run() -> None:
        given = twins()
        positional = [given[str(place)] for place in range(len(args))]
        step(*positional, **{key: given[key] for key in kwargs})

    def start(model: torch.nn.Module) -> TrainingStart:
        optimizer = next((value for value in twins().values() if isinstance(value, torch.optim.Optimizer)), None)
        if optimizer is not None and not optimizer.state:
            run()
        batch = {key: value for key, value in twins().items() if not isinstance(value, torch.nn.Module)}
        return TrainingStart(batch, optimizer)

    target = Target(
        model=name,
        phase="training step",
        workload={"inputs": [f"{tuple(tensor.shape)}" for tensor in tensors_in(arguments)]},
        build=lambda: _root(twins(), step, args),
        prepare=start,
        invoke=lambda model, given: run(),
    )
    return record_step(target, Engine(device=device, routing=routing or "uniform", autograd=True))


def _by_name(step: Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their place or name."""
    arguments = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    if not any(isinstance(value, torch.nn.Module) for value in arguments.values()):
        raise UsageError(
            "The training step has no model among its arguments.",
            why="its weights are replaced by tensors without values, so they must be seen before it runs",
            fix="write def step(model, optimizer, batch), and give args=(model, optimizer, batch)",
        )
    return arguments


def _root(twins: Mapping[str, Any], step: Step, args: Sequence[Any]) -> torch.nn.Module:
    """The model; several modules, such as a model and its loss, are the parts of one by the names of the arguments."""
    names = list(inspect.signature(step).parameters)[: len(args)]
    modules = {
        names[int(key)] if key.isdigit() and int(key) < len(names) else key: value
        for key, value in twins.items()
        if isinstance(value, torch.nn.Module)
    }
    return next(iter(modules.values())) if len(modules) == 1 else torch.nn.ModuleDict(modules)
