"""A part of a model as a function of tensors: a module and the arguments of its call, on meta or with random values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.target import Part, Target
from llm_perf_opt.core.thread_patches import ThreadPatches
from llm_perf_opt.exports.failure import EXPORT_ERRORS
from llm_perf_opt.harness.isolation import build_on_ghosts, isolate
from llm_perf_opt.harness.twins import distinct_tensors, is_cache, meta_twin, real_twin, tensors_in, with_tensors
from llm_perf_opt.weightless import Engine, Ghost


class TensorsOnly(torch.nn.Module):
    """A module with the arguments of one call; every tensor in them is an input, everything else stays as it was.

    The outputs are the tensors in what the module returns, then those that it put into a cache among its arguments.
    Arguments are rebuilt for each call, so a cache is never written to twice.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.arguments = (args, kwargs)
        self.given = distinct_tensors(self.arguments)
        self.idle: list[torch.Tensor] = []

    def leave_out(self, places: Collection[int]) -> None:
        """These inputs have no influence: they stay in the arguments and are neither inputs nor outputs."""
        self.idle += [tensor for place, tensor in enumerate(self.given) if place in places]
        self.given = [tensor for place, tensor in enumerate(self.given) if place not in places]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the call on other tensors of the same meaning."""
        args, kwargs = self.rebuilt(tensors)
        idle = set(map(id, self.idle))
        outputs = [tensor for tensor in tensors_in(self.module(*args, **kwargs)) if id(tensor) not in idle]
        known = {id(tensor) for tensor in (*tensors, *outputs)} | idle
        return (*outputs, *(tensor for tensor in tensors_in((args, kwargs)) if id(tensor) not in known))

    def rebuilt(self, tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with `tensors` in the places of those that were given."""
        unchanged = ((tensor, tensor) for tensor in self.idle)
        return with_tensors(self.arguments, (*zip(self.given, tensors, strict=True), *unchanged))


def input_names(call: TensorsOnly) -> list[str]:
    """`hidden_states`, or `past_key_value.0` where an argument holds several tensors; one per input, in order."""
    args, kwargs = call.arguments
    bound = inspect.signature(call.module.forward).bind(*args, **kwargs).arguments
    names: dict[int, str] = {}
    for name, value in bound.items():
        tensors = tensors_in(value)
        for place, tensor in enumerate(tensors):
            names.setdefault(id(tensor), name if isinstance(value, torch.Tensor) else f"{name}.{place}")
    return [names[id(tensor)] for tensor in call.given]


def cached_tensors(call: TensorsOnly) -> list[int]:
    """Which of the inputs come out of a cache."""
    args, kwargs = call.arguments
    held = {id(tensor) for value in (*args, *kwargs.values()) if is_cache(value) for tensor in tensors_in(value)}
    return [place for place, tensor in enumerate(call.given) if id(tensor) in held]


def signature_adaptations(call: TensorsOnly) -> tuple[str, ...]:
    """What had to be changed in the arguments, in words."""
    args, kwargs = call.arguments
    values = (*args, *kwargs.values())
    caches = dict.fromkeys(type(value).__name__ for value in values if is_cache(value))
    adaptations = [f"{name} as key and value tensors, in and out" for name in caches]
    if any(isinstance(value, (list, tuple, dict)) and tensors_in(value) for value in values):
        adaptations.append("lists and tuples as separate tensors")
    if any(not tensors_in(value) and not is_cache(value) for value in values):
        adaptations.append("arguments that are no tensors as constants")
    return tuple(adaptations)


@contextmanager
def autocast_knows_meta() -> Iterator[None]:
    """Regions of `torch.autocast` for the meta device are taken as CPU regions; as before afterwards."""

    def on_the_cpu(plain: Callable[..., None]) -> Callable[..., None]:
        def initialise(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            plain(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

        return initialise

    with ThreadPatches() as patches:
        patches.wrap(torch.autocast, "__init__", on_the_cpu)
        yield


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
    real: TensorsOnly | None = None  # the call on real tensors, with the weights that were asked for

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
    recorded = calls[-1]
    module = recorded.module
    if part.wrap is not None:
        with engine:
            module = part.wrap(model)
    call = TensorsOnly(module, recorded.args, recorded.kwargs)
    adaptations = (*((part.adaptation,) if part.adaptation else ()), *switched, *signature_adaptations(call))
    return PartUnderTest(part=part, call=call, names=tuple(input_names(call)), adaptations=adaptations)


_SEED = 0


@torch.no_grad()
def with_random_weights(subject: PartUnderTest) -> TensorsOnly:
    """The call on real tensors: what was real keeps its values, ghosts get random ones.

    Inputs are of unit variance, matrices preserve the variance of what they multiply, and vectors called `weight` are
    near one, as the scales of norms are; so tiny values do not hide a difference between two runtimes.
    """
    call = real_twin(subject.call, _SEED)
    generator = torch.Generator().manual_seed(_SEED)
    for name, parameter in call.module.named_parameters():
        fill_at_random(name, parameter, generator)
    _fill_inputs(call, subject.call, generator)
    return call


def fill_at_random(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Matrices that keep the variance of what they multiply; vectors are small, and those called `weight` near one."""
    if not parameter.is_floating_point():
        return
    if parameter.ndim >= 2:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5)
    elif name.endswith("weight"):
        parameter.add_(1)


def _fill_inputs(call: TensorsOnly, origin: TensorsOnly, generator: torch.Generator) -> None:
    for twin, ghost in zip(call.given, origin.given, strict=True):
        if isinstance(ghost, Ghost):
            twin.copy_(torch.randn(twin.shape, generator=generator))


@torch.no_grad()
def with_module(subject: PartUnderTest, module: torch.nn.Module) -> PartUnderTest:
    """The same part, which also runs on real tensors: `module` has its weights, and the inputs get random values."""
    arguments = TensorsOnly(torch.nn.Identity(), *subject.call.arguments)
    arguments.given, arguments.idle = subject.call.given, subject.call.idle
    real = real_twin(arguments, _SEED)
    real.module = module
    _fill_inputs(real, subject.call, torch.Generator().manual_seed(_SEED))
    return replace(subject, real=real)


def runnable(subject: PartUnderTest) -> TensorsOnly:
    """The call on real tensors: with the weights that were asked for, or with random ones."""
    return with_random_weights(subject) if subject.real is None else subject.real


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
    used_names = tuple(name for place, name in enumerate(subject.names) if place not in idle)
    left_out = (f"{len(idle)} tensors of the cache that it never reads left out",) if idle else ()
    return replace(subject, names=used_names, adaptations=(*subject.adaptations, *left_out))


class _Touched(TorchDispatchMode):
    """Identities of every tensor that an op was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ids: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ids |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        return func(*args, **(kwargs or {}))
