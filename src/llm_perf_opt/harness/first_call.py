"""What a phase calls its model with: the real tensors of the inputs, made without the weights of the model."""

from __future__ import annotations

from inspect import signature
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.isolation import build_on_ghosts
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.weightless import Engine


class _ReachedForwardError(Exception):
    """The model was called; nothing of it needs to run."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(args, kwargs)
        self.arguments = args, kwargs


def first_call(target: Target, device: str = "cpu") -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the first forward of the phase, on `device`. The forward itself never runs.

    The target must be a fresh one: its model is built on ghosts. A model that takes an `attention_mask` and is called
    without one attends to every token, and the mask that says so is among the arguments.
    """

    def stop(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, torch.Tensor) and "attention_mask" in signature(module.forward).parameters:
            kwargs = {"attention_mask": torch.ones_like(ids), **kwargs}
        raise _ReachedForwardError(args, kwargs)

    with OneRun(), Interruptible():
        model = build_on_ghosts(target, Engine())
        handle = model.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with silenced():
                target.run(model)
        except _ReachedForwardError as reached:
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), reached.arguments)
            return args, kwargs
        finally:
            handle.remove()
    raise PerfOptError(
        f"The {target.phase} of {target.model} never calls the model.",
        why="its inputs are known when its forward is called",
        fix="make the inputs with the adapter's own target",
    )


def module_paths(target: Target) -> list[str]:
    """The path of every module of a fresh target's model, built on ghosts; the root is the empty path."""
    with OneRun(), Interruptible():
        return [path for path, _ in build_on_ghosts(target, Engine()).named_modules()]
