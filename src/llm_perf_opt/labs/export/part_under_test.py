"""From a part's name to a module with the arguments of its call, without memory or with random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.protocols import Part, Target
from llm_perf_opt.harness.isolation import build_on_ghosts, isolate
from llm_perf_opt.harness.twins import meta_twin, real_twin
from llm_perf_opt.labs.export.failure import EXPORT_ERRORS
from llm_perf_opt.labs.export.tensor_signature import (
    TensorsOnly,
    autocast_knows_meta,
    cached_tensors,
    input_names,
    signature_adaptations,
)
from llm_perf_opt.weightless import Engine, Ghost

EXPORTABLE = ("eager", "sdpa")


def switch_attention(model: torch.nn.Module) -> tuple[str, ...]:
    """Let a transformers model use torch's fused attention where it names another kernel; says what was switched."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    switch: Any = getattr(model, "set_attn_implementation", None)
    if not isinstance(chosen, str) or chosen in EXPORTABLE or switch is None:
        return ()
    switch("sdpa")
    return (f"attention {chosen} switched to sdpa",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUnderTest:
    """The call on ghosts, the names of its inputs, and what was changed so that it depends on tensors alone."""

    part: Part
    call: TensorsOnly
    names: tuple[str, ...]
    adaptations: tuple[str, ...]

    @property
    def module(self) -> torch.nn.Module:
        """What is exported, without the adaptation of its arguments."""
        return self.call.module

    @property
    def parameters(self) -> int:
        """How many weights the part has."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def weight_bytes(self) -> int:
        """What its weights and buffers would take in memory."""
        held = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def prepare(target: Target, part: Part, engine: Engine) -> PartUnderTest:
    """Run the target on ghosts and keep the last distinct call of the part's module."""
    model = build_on_ghosts(target, engine)
    switched = switch_attention(model)
    calls = isolate(target, [part.path], engine)
    if not calls:
        raise UsageError(
            f"The {target.phase} of {target.model} does not call a module {part.path!r}.",
            why="a part is taken with the arguments that it gets in the run",
            fix="llm-perf-opt trace lists the modules that run; or ask for another --phase",
        )
    found = calls[-1]
    module = found.module
    if part.wrap is not None:
        with engine:
            module = part.wrap(model)
    call = TensorsOnly(module, found.args, found.kwargs)
    adaptations = (*((part.adaptation,) if part.adaptation else ()), *switched, *signature_adaptations(call))
    return PartUnderTest(part=part, call=call, names=tuple(input_names(call)), adaptations=adaptations)


_SEED = 0


@torch.no_grad()
def with_random_weights(subject: PartUnderTest) -> TensorsOnly:
    """The call on real tensors: what was real keeps its values, ghosts get random ones.

    Inputs are of unit variance, matrices keep that of what they multiply, and vectors called `weight` are near one, as
    the scales of norms are; so a difference between two runtimes is not hidden by values that are all tiny.
    """
    call = real_twin(subject.call, _SEED)
    generator = torch.Generator().manual_seed(_SEED)
    for name, parameter in call.module.named_parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            fan_in = parameter[0].numel()
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
        elif name.endswith("weight") and parameter.is_floating_point():
            parameter.add_(1)
    for twin, origin in zip(call.given, subject.call.given, strict=True):
        if isinstance(origin, Ghost):
            twin.copy_(torch.randn(twin.shape, generator=generator))
    return call


def copied_inputs(call: TensorsOnly) -> tuple[torch.Tensor, ...]:
    """The inputs of the call, safe to be written to."""
    return tuple(tensor.clone() for tensor in call.given)


def without_idle_cache(subject: PartUnderTest) -> PartUnderTest:
    """The same part with only those tensors of a cache as inputs that an eager run on the meta device touches."""
    held = cached_tensors(subject.call)
    if not held:
        return subject
    twin = meta_twin(subject.call)
    touched = _Touched()
    try:
        with torch.no_grad(), autocast_knows_meta(), touched:
            twin(*twin.given)
    except EXPORT_ERRORS:
        return subject  # the export will fail as well, and say where
    idle = {place for place in held if id(twin.given[place]) not in touched.ids}
    subject.call.leave_out(idle)
    kept = tuple(name for place, name in enumerate(subject.names) if place not in idle)
    told = (f"{len(idle)} tensors of the cache that it never reads left out",) if idle else ()
    return replace(subject, names=kept, adaptations=(*subject.adaptations, *told))


class _Touched(TorchDispatchMode):
    """Identities of every tensor that an op was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ids |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        return func(*args, **(kwargs or {}))
