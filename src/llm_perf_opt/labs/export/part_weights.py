"""The weights of one part: read from a checkpoint or made at random, while those of the rest of the model stay away.

The model is built with its parameters on the meta device and its buffers, which no checkpoint may hold, as their
constructors make them. Then the parameters below the part's modules get memory and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.weights import load_some_weights, same_random_numbers
from llm_perf_opt.labs.export.part_under_test import PartUnderTest, fill_at_random, switch_attention, with_module

RANDOM = "random"
_SEED = 0
_SPREAD = 0.02


def with_weights(subject: PartUnderTest, target: Target, weights: str) -> PartUnderTest:
    """The part with values: of `target`, which nothing has run yet, or of the folder `weights`, or random ones.

    A target that has weights of its own, as a module that was passed in, keeps them.
    """
    with silenced():
        model = target.build() if target.has_weights else _built(target)
    switch_attention(model)
    part = subject.part
    if not target.has_weights:
        _give_values(model, part, weights)
    with torch.no_grad():
        module = model.get_submodule(part.path) if part.wrap is None else part.wrap(model)
    _require_values(module, part)
    return with_module(subject, module.eval().requires_grad_(False))


def _require_values(module: torch.nn.Module, part: Part) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise PerfOptError(
                f"{name} of the part {part.name!r} has no value.",
                why="its constructor computes it from weights that are read later",
                fix="export without --load-weights",
            )


def _built(target: Target) -> torch.nn.Module:
    with same_random_numbers(_SEED), _parameters_on_meta():
        model: torch.nn.Module = target.build()
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A parameter loses its memory as soon as a module takes it; one that is shared stays one."""

    def without_memory(register: Any) -> Any:
        def registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
            if parameter is not None and not parameter.is_meta:
                parameter = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
            register(module, name, parameter)

        return registered

    with ThreadPatches() as patches:
        patches.wrap(torch.nn.Module, "register_parameter", without_memory)
        yield


@torch.no_grad()
def _give_values(model: torch.nn.Module, part: Part, weights: str) -> None:
    under = part.wraps or (part.path,)
    made = _materialised(model, under)
    if weights != RANDOM:
        load_some_weights(made, Path(weights), under)
        return
    generator = torch.Generator().manual_seed(_SEED)
    for name, tensor in made.items():
        if isinstance(tensor, torch.nn.Parameter):  # a buffer keeps what its constructor made
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * _SPREAD)
            fill_at_random(name, tensor, generator)


def _materialised(model: torch.nn.Module, under: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Every weight of the modules at these paths, with memory, under all names that the model has for it."""
    wanted = [tensor for path in under for tensor in model.get_submodule(path).state_dict(keep_vars=True).values()]
    ids = set(map(id, wanted))
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) not in ids:
                continue
            if parameter.is_meta and id(parameter) not in made:
                memory = torch.empty_like(parameter, device="cpu")
                made[id(parameter)] = torch.nn.Parameter(memory, requires_grad=False)
            module._parameters[name] = made.get(id(parameter), parameter)
    kept = set(map(id, made.values())) | ids
    return {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in kept}
