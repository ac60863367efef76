"""Modules of a run with the arguments they are called with, and where to cut a run into modules of one stage.

A source or an exporter takes such a module by itself. The target runs once on ghosts, so the arguments have the shapes
of the real run and nothing is materialised.

`first_call` is what a phase calls its model with: the real tensors of the inputs, made without the weights.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_map_only

from llm_perf_opt.core.callgraph.queries import deepest_claim
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.interrupts import Interruptible
from llm_perf_opt.core.run_lock import OneRun
from llm_perf_opt.core.source_figures import WorkFamily, family_of
from llm_perf_opt.core.target import Target
from llm_perf_opt.harness.module_calls import After, Before, watch_forwards
from llm_perf_opt.harness.op_watch import OpWatch, Signature, signature
from llm_perf_opt.harness.quiet import silenced
from llm_perf_opt.harness.trace_header import observing
from llm_perf_opt.harness.twins import twin
from llm_perf_opt.weightless import Engine


def build_on_ghosts(target: Target, engine: Engine) -> torch.nn.Module:
    """The model of the target with ghosts for weights; building twice gives the same model."""
    with engine:
        model: torch.nn.Module = engine.adopt(target.build())
    return model


def run_watched(target: Target, model: torch.nn.Module, given: object, before: Before, after: After) -> None:
    """Run the target on what it was prepared with and tell of every module call, with its arguments as they are."""
    with observing(target, model), watch_forwards(model, before, after), silenced():
        target.run(model, given)


class OpenStages:
    """The stage of each forward on the stack: its own claim, or its caller's stage."""

    def __init__(self, target: Target) -> None:
        self._claims = {path: stage.name for stage in target.stages for path in stage.paths}
        self._open = [target.phase]

    @property
    def current(self) -> str:
        """Where an op that runs now belongs."""
        return self._open[-1]

    def enter(self, path: str) -> None:
        """A forward begins."""
        self._open.append(deepest_claim(path, self._claims) or self.current)

    def leave(self) -> None:
        """A forward ends."""
        self._open.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedCall:
    """A module and the arguments of one of its calls; `calls` is how many calls of the run are just like it.

    Weights and float arguments are ghosts, integer arguments are real. Alike are calls of modules of one class that ran
    the same ops on the same shapes, in whatever order: a cache may meanwhile have grown for other layers. `paths` names
    every module that is meant.
    """

    path: str
    paths: tuple[str, ...]
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: int
    stage: str

    def fresh_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A copy to call the module with: a layer may write into the cache that it is given."""
        return twin((self.args, self.kwargs))


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseOp:
    """An op that ran in none of the isolated modules, with the arguments of one of its equally shaped runs."""

    stage: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The distinct calls of chosen modules, in the order in which they first happen, and what ran between them."""

    calls: tuple[IsolatedCall, ...]
    loose: tuple[LooseOp, ...]


def isolate(target: Target, paths: Collection[str], engine: Engine) -> tuple[IsolatedCall, ...]:
    """The distinct calls of the modules at `paths`, in the order in which they first happen."""
    return cut_apart(target, paths, engine).calls


def cut_apart(target: Target, paths: Collection[str], engine: Engine) -> Isolation:
    """Run the target and take the calls of the modules at `paths` out of it.

    A call inside another wanted call is part of that one. Arguments are copied on entry, so a cache is seen as it was
    before the module wrote to it.
    """
    model = build_on_ghosts(target, engine)

    def forward() -> Isolation:
        collector = _Collector(target, paths)
        given = target.start(model)
        with OpWatch(collector.on_op):
            run_watched(target, model, given, collector.before, collector.after)
        return Isolation(calls=tuple(collector.calls.values()), loose=tuple(collector.loose.values()))

    return engine.run(forward)


class _Collector:
    """Calls of wanted modules and ops outside them while a target runs, those that are alike as one."""

    def __init__(self, target: Target, paths: Collection[str]) -> None:
        self.calls: dict[tuple[Any, ...], IsolatedCall] = {}
        self.loose: dict[tuple[str, Signature], LooseOp] = {}
        self._stages = OpenStages(target)
        self._paths = frozenset(paths)
        self._open = 0  # forwards on the stack, from the wanted one inwards
        self._call: IsolatedCall | None = None
        self._ops: Counter[Signature] = Counter()

    def before(self, path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward begins."""
        self._stages.enter(path)
        if self._call is None and path in self._paths:
            self._open = 1  # already here, so that copying the arguments is not taken for loose work
            stage = self._stages.current
            args, kwargs = twin((args, kwargs))
            self._call = IsolatedCall(
                path=path, paths=(path,), module=module, args=args, kwargs=kwargs, calls=1, stage=stage
            )
            self._ops.clear()
        elif self._call is not None:
            self._open += 1

    def on_op(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """An op ran."""
        ran = signature(func, args, kwargs, output)
        if self._open:
            self._ops[ran] += 1
            return
        key = (self._stages.current, ran)
        known = self.loose.get(key)
        if known is None:
            known = LooseOp(stage=key[0], func=func, args=tuple(args), kwargs=dict(kwargs), calls=0)
        self.loose[key] = replace(known, calls=known.calls + 1)

    def after(self, path: str, output: Any) -> None:
        """A forward ends."""
        self._stages.leave()
        if self._call is None:
            return
        self._open -= 1
        if self._open:
            return
        call, self._call = self._call, None
        key = (call.stage, type(call.module), frozenset(self._ops.items()))
        known = self.calls.get(key)
        if known is not None:
            paths = known.paths if path in known.paths else (*known.paths, path)
            call = replace(known, calls=known.calls + 1, paths=paths)
        self.calls[key] = call


_RUN = "<run>"  # the caller of the outermost modules


def stage_roots(target: Target, engine: Engine) -> tuple[str, ...]:
    """Modules that together are the run, in the order of their calls.

    They are the largest that are of one stage throughout; what no stage claims is cut further, into its layers, of
    which most are alike, where that leaves no matmul between the pieces. Ops that run directly in a module
    above them, such as the scattering of image features, are in none of these.
    """
    model = build_on_ghosts(target, engine)

    def forward() -> dict[str, _Called]:
        called: dict[str, _Called] = {_RUN: _Called()}
        open_paths, stages = [_RUN], OpenStages(target)

        def before(path: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            stages.enter(path)
            if path not in open_paths:  # a module that calls itself has nothing new below it
                called[open_paths[-1]].children[path] = None
            called.setdefault(path, _Called()).stages.add(stages.current)
            open_paths.append(path)

        def on_op(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
            if family_of(str(func)) is not WorkFamily.OTHER:
                called[open_paths[-1]].matmuls.add(str(func))

        def after(path: str, output: Any) -> None:
            stages.leave()
            open_paths.pop()

        given = target.start(model)
        with OpWatch(on_op):
            run_watched(target, model, given, before, after)
        return called

    return tuple(dict.fromkeys(_largest(_RUN, engine.run(forward), target.phase)))


@dataclass(frozen=True, slots=True)
class _Called:
    """What a module calls, in order, the stages that its calls belonged to, and the matmuls it runs itself."""

    children: dict[str, None] = field(default_factory=dict)
    stages: set[str] = field(default_factory=set)
    matmuls: set[str] = field(default_factory=set)


def _largest(path: str, called: Mapping[str, _Called], phase: str) -> Iterator[str]:
    for child in called[path].children:
        below = list(_below(child, called))
        stages = set().union(*(called[module].stages for module in below))
        has_layers = stages == {phase} and not _is_layer(child) and any(map(_is_layer, below))
        is_cut = len(stages) > 1 or (has_layers and not called[child].matmuls)
        if is_cut and called[child].children:
            yield from _largest(child, called, phase)
        else:
            yield child


def _is_layer(path: str) -> bool:
    """Whether the module is an entry of a list, as the layers of a stack are."""
    return path.rpartition(".")[2].isdigit()


def _below(path: str, called: Mapping[str, _Called]) -> Iterator[str]:
    """The module and every module that is called inside it."""
    seen, left = set(), [path]
    while left:
        current = left.pop()
        if current not in seen:
            seen.add(current)
            yield current
            left.extend(called[current].children)


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
        if isinstance(ids, torch.Tensor) and "attention_mask" in inspect.signature(module.forward).parameters:
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
        why="the inputs of its modules can only be read while its forward runs",
        fix="use a target that the model's adapter makes",
    )


def module_paths(target: Target) -> list[str]:
    """The path of every module of a fresh target's model, built on ghosts; the root is the empty path."""
    with OneRun(), Interruptible():
        return [path for path, _ in build_on_ghosts(target, Engine()).named_modules()]
