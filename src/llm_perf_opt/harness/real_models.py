"""Models that run for real, traced or timed: built once, given weights, put on the device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.callgraph import Json
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.weights import fill_with_noise, load_weights, same_random_numbers
from llm_perf_opt.weightless.ghost import Ghost


class RealModels:
    """Builds the model of a target with real weights: random ones of the right size, or those in a folder.

    The targets of one workload share one model, so the last model is kept and its weights are made once.
    """

    def __init__(self, *, weights: str, device: str) -> None:
        if weights == "none":
            raise UsageError(
                "A real run needs weights.",
                why="only the weightless tracer runs a model without them",
                fix="use --load-weights random, or the folder that holds the released ones",
            )
        self._weights = weights
        self.device = _present(device)
        self._last: torch.nn.Module | None = None

    @property
    def settings(self) -> dict[str, Json]:
        """The part of the workload that is decided here; of a folder only its name, not its place."""
        weights = self._weights if self._weights == "random" else Path(self._weights).name
        return {"weights": weights, "device": self.device}

    def model_of(self, target: Target) -> torch.nn.Module:
        """The model, ready to run."""
        with OneRun(), Interruptible():
            with same_random_numbers():  # the same target is the same model, for every tracer
                model: torch.nn.Module = target.build()
            if model is not self._last:
                _refuse_unreal(model)
                if not target.has_weights:
                    self._give_weights(model)
                self._last = model.to(self.device)
        return model

    def _give_weights(self, model: torch.nn.Module) -> None:
        if self._weights == "random":
            fill_with_noise(model)
        else:
            load_weights(model, Path(self._weights))
        model.eval()

    @contextmanager
    def inputs_moved(self, model: torch.nn.Module) -> Iterator[None]:
        """Bring what `model` is called with to the device; targets make their inputs on the CPU."""
        if self.device == "cpu":
            yield
            return
        own_forward, forward = model.__dict__.get("forward"), model.forward
        move = functools.partial(tree_map_only, torch.Tensor, lambda tensor: tensor.to(self.device))

        @functools.wraps(forward)
        def moved(*args: Any, **kwargs: Any) -> Any:
            return forward(*move(args), **move(kwargs))

        model.__dict__["forward"] = moved
        try:
            with torch.device(self.device):
                yield
        finally:
            if own_forward is None:
                del model.__dict__["forward"]
            else:
                model.__dict__["forward"] = own_forward


def _present(device: str) -> str:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise PerfOptError(
            "This machine has no CUDA device.",
            why=f"this run was asked to use real tensors on {device}",
            fix="run on the CPU; without a GPU llm-perf-opt trace MODEL --device ID says how long it would take",
        )
    return device


def _refuse_unreal(model: torch.nn.Module) -> None:
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor.is_meta or isinstance(tensor.data, Ghost):
            raise PerfOptError(
                f"{name} has no values in memory.",
                why="the model was built without weights, or was handed to the weightless tracer before",
                fix="make new targets for each tracer: adapter.targets(workload)",
            )
