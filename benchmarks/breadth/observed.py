"""One model class twice, for real on the CPU with random weights and weightless, compared call by call.

A run is seen from outside: every module call in order, with the tensors that went in and out.
`forward` is wrapped per instance, not hooked, because some models call `child.forward(...)` directly. The same code
watches a real run and a weightless one, so a difference between two observations is a difference between the runs.
"""

from __future__ import annotations

import copy
import functools
import random
import re
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.runner import Record
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.weightless import Engine, ReplayRouting

TensorSpec = tuple[str, tuple[int, ...]]  # a tensor as two runs can share it: dtype name and shape


@dataclass(slots=True)
class ObservedCall:
    """One execution of one module; `outputs` stays `None` when the call raised."""

    path: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] | None = None


@dataclass(slots=True)
class Observation:
    """Every call in the order of entry, and the tensors of the value the whole run returned."""

    calls: list[ObservedCall] = field(default_factory=list)
    result: tuple[TensorSpec, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The module paths in calling order."""
        return [call.path for call in self.calls]


def observe(
    model: torch.nn.Module,
    invoke: Callable[[], object],
    run: Callable[[Callable[[], object]], object] = lambda invoke: invoke(),
) -> Observation:
    """Call `run(invoke)` and watch `model`; when `run` starts `invoke` again, only the last attempt is kept."""
    seen = Observation()

    def attempt() -> object:
        seen.calls.clear()
        return invoke()

    with ExitStack() as cleanup:
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                _wrap(module, path, seen.calls, cleanup)
        seen.result = specs_in(run(attempt))
    return seen


def _wrap(module: torch.nn.Module, path: str, calls: list[ObservedCall], cleanup: ExitStack) -> None:
    forward = module.forward

    @functools.wraps(forward)
    def observed(*args: Any, **kwargs: Any) -> Any:
        call = ObservedCall(path, specs_in((args, kwargs)))
        calls.append(call)
        value = forward(*args, **kwargs)
        call.outputs = specs_in(value)
        return value

    if "forward" in vars(module):
        cleanup.callback(setattr, module, "forward", forward)
    else:
        cleanup.callback(delattr, module, "forward")
    module.forward = observed


def specs_in(value: object) -> tuple[TensorSpec, ...]:
    """Dtype and shape of every tensor in `value`: nested containers, dataclasses and key-value caches included."""
    return tuple((str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in _tensors(value, set()))


def _tensors(value: object, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        for child in _children(value):
            yield from _tensors(child, seen)


def _children(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif _is_library_record(value):
        yield from list(vars(value).values())


def _is_library_record(value: object) -> bool:
    """Whether `value` holds tensors for the library (a cache, a mask) and is neither a model nor a configuration."""
    kind = type(value)
    return (
        kind.__module__.startswith("transformers.")
        and hasattr(value, "__dict__")
        and not isinstance(value, (torch.nn.Module, type))
        and not kind.__name__.endswith("Config")
    )


EXAMPLES_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where a weightless run and a real run of the same model part.

    The n-th call of a module is compared with the n-th call of the same module. `differences` has the path of each call
    that only one of the runs made, or whose shapes or dtypes differ, and what that is.
    """

    calls_real: int
    differences: tuple[tuple[str, str], ...]
    sequence_equal: bool
    result_equal: bool

    @property
    def exact(self) -> bool:
        """Equal in call counts, order, every input and output tensor of every call, and the final result."""
        return self.sequence_equal and self.result_equal and not self.differences

    @property
    def examples(self) -> list[str]:
        return [f"{path or '(model)'}: {text}" for path, text in self.differences[:EXAMPLES_KEPT]]


def compare(real: Observation, weightless: Observation) -> Comparison:
    """Compare `weightless` with `real`, call by call."""
    differing = [(path, text) for path, *calls in _pairs(real, weightless) if (text := _difference(*calls)) is not None]
    return Comparison(
        calls_real=len(real.calls),
        differences=tuple(differing),
        sequence_equal=real.paths == weightless.paths,
        result_equal=real.result == weightless.result,
    )


def _difference(real: ObservedCall | None, weightless: ObservedCall | None) -> str | None:
    if real is None or weightless is None:
        return f"a call only in the {'real' if weightless is None else 'weightless'} run"
    ours, theirs = _signature(weightless), _signature(real)
    is_equal = (real.inputs, real.outputs or ()) == (weightless.inputs, weightless.outputs or ())
    return None if is_equal else f"real {theirs}, weightless {ours}"


def _pairs(
    real: Observation, weightless: Observation
) -> Iterator[tuple[str, ObservedCall | None, ObservedCall | None]]:
    waiting: dict[str, list[ObservedCall]] = defaultdict(list)
    for call in reversed(weightless.calls):
        waiting[call.path].append(call)
    for call in real.calls:
        partners = waiting[call.path]
        yield call.path, call, partners.pop() if partners else None
    for path, left in waiting.items():
        for call in reversed(left):
            yield path, None, call


def _signature(call: ObservedCall) -> str:
    return f"{_listed(call.inputs)} -> {_listed(call.outputs or ())}"


def _listed(specs: tuple[TensorSpec, ...]) -> str:
    shown = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in specs[:4])
    return f"({shown}{', ...' if len(specs) > 4 else ''})"


aten = torch.ops.aten
ONE_OF = (aten.argmax.default, aten.argmin.default, aten.max.dim)


class RoutingRecorder(TorchDispatchMode):
    """While active, every choice the engine would leave to its routing policy leaves one list of counts, in order.

    Those are `topk`, and `argmax`, `argmin` or `max` of floats along a dimension: a router that takes one expert.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func is aten.topk.default:
            self._count(value[1], args[0].shape[args[2] if len(args) > 2 else -1])
        elif func in ONE_OF and args[0].is_floating_point() and len(args) > 1:
            self._count(value[1] if func is aten.max.dim else value, args[0].shape[args[1]])
        return value

    def _count(self, chosen: torch.Tensor, candidates: int) -> None:
        self.counts.append(torch.bincount(chosen.flatten(), minlength=candidates).tolist())


Build = Callable[[], torch.nn.Module]
Inputs = Mapping[str, Any]
WEIGHT_SCALES = (1, 10, 30)  # of further real runs, which show whether values change what is called


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """What a real run did, and how its routers spread the rows."""

    seen: Observation
    routing: list[list[int]]


def run_real(build: Build, inputs: Inputs, *, seed: int = 0, scale: float = 1) -> RealRun:
    """Build with random weights, multiply them by `scale`, run once on the CPU, without gradients."""
    _seed(seed)
    model = build().eval()
    if scale != 1:
        for parameter in model.parameters():
            parameter.data.mul_(scale)
    given = copy.deepcopy(dict(inputs))
    routing = RoutingRecorder()
    with torch.no_grad(), routing:
        seen = observe(model, lambda: model(**given))
    return RealRun(seen=seen, routing=routing.counts)


def run_weightless(build: Build, inputs: Inputs, *, replay: list[list[int]] | None = None) -> Observation:
    """Build and run without weights; float inputs have no values either. `replay` holds recorded expert counts."""
    _seed(0)
    engine = Engine(device="cpu") if replay is None else Engine(device="cpu", routing=ReplayRouting(replay))
    with engine:
        model = build().eval()
    given = ghost_floats(engine, dict(inputs))
    return observe(model, lambda: model(**given), engine.run)


def ghost_floats(engine: Engine, value: Any) -> Any:
    """A copy of `value` in which every float tensor is a ghost; integers, bools and masks keep their values."""
    if isinstance(value, torch.Tensor):
        return engine.ghost(*value.shape, dtype=value.dtype) if value.is_floating_point() else value.clone()
    if isinstance(value, Mapping):
        copied = copy.copy(value)
        for key, item in value.items():
            # A mask says what is there, not what it looks like: whoever traces a model knows it, also as floats.
            copied[key] = copy.deepcopy(item) if "mask" in str(key) else ghost_floats(engine, item)  # type: ignore[index]
        return copied
    if isinstance(value, (list, tuple)):
        return type(value)(ghost_floats(engine, item) for item in value)
    return value


def tiny_record(prepare: Callable[[], tuple[Build, Inputs]]) -> Record:
    """The record of one class: `status` is unreal, failed, differs, replayed or equal; see
    `docs/evidence/breadth.md`.
    """
    try:
        _seed(0)
        build, given = prepare()
        real = run_real(build, given)
    except Exception as error:  # noqa: BLE001 - a sweep records whatever a model raises; nothing is swallowed
        return _failure("unreal", error)
    try:
        held = compare(real.seen, run_weightless(build, given))
    except Exception as error:  # noqa: BLE001 - as above
        return _failure("failed", error)
    if held.exact:
        return _held("equal", held)
    return _explained(build, given, real, held)


def _explained(build: Build, inputs: Inputs, real: RealRun, held: Comparison) -> Record:
    """Find out whether routing, or weights at all, account for a difference."""
    record = _held("differs", held) | {"examples": held.examples}
    if real.routing:
        try:
            replayed = compare(real.seen, run_weightless(build, inputs, replay=real.routing))
        except PerfOptError as error:  # the record does not fit, because the run split from the real one before
            record |= {"replay": [error.why]}
        else:
            if replayed.exact:
                return record | {"status": "replayed"}
            record |= {"replay": replayed.examples}
    return record | {"evidence": _evidence(build, inputs, real)}


def _evidence(build: Build, inputs: Inputs, real: RealRun) -> str:
    """How real runs with other random weights, small or large, part from the first one; empty when none does."""
    for scale in WEIGHT_SCALES:
        try:
            other = run_real(build, inputs, seed=1, scale=scale)
        except Exception as error:  # noqa: BLE001 - what other weights lead the model into is the evidence itself
            return f"a real run with weights {scale} times as large ends with {_message(error)}"
        if differing := compare(real.seen, other.seen).differences:
            return f"a real run with other weights differs in {len(differing)} calls"
    return ""


def _held(status: str, held: Comparison) -> Record:
    return {"status": status, "calls": held.calls_real, "calls_differ": len(held.differences)}


def _failure(status: str, error: Exception) -> Record:
    return {"status": status, "message": _message(error), "traceback": "".join(traceback.format_exception(error))}


def _message(error: Exception) -> str:
    """Without the place where libraries are installed, which is nobody's business but the machine's."""
    return re.sub(r"/[^\s'\"]+/site-packages/", "", f"{type(error).__name__}: {error}")[:300]


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
