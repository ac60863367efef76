"""One model class twice: for real on the CPU with random weights, and weightless; then the two held side by side."""

from __future__ import annotations

import copy
import random
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.weightless import Engine, ReplayRouting

from .comparison import Comparison, compare
from .fork_pool import Record
from .observation import Observation, observe
from .routing_record import RoutingRecorder

Build = Callable[[], torch.nn.Module]
Inputs = Mapping[str, Any]
TRACEBACK_CHARACTERS = 1500
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
    """The record of one class: `status` is unreal, failed, differs, replayed or equal; see `docs/breadth.md`."""
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
    record = _held("differs", held) | {"examples": list(held.examples)}
    if real.routing:
        try:
            replayed = compare(real.seen, run_weightless(build, inputs, replay=real.routing))
        except PerfOptError as error:  # the record does not fit, because the run parted from the real one before
            record |= {"replay": [error.why]}
        else:
            if replayed.exact:
                return record | {"status": "replayed"}
            record |= {"replay": list(replayed.examples)}
    return record | {"evidence": _evidence(build, inputs, real)}


def _evidence(build: Build, inputs: Inputs, real: RealRun) -> str:
    """How real runs with other random weights, small or large, part from the first one; empty when none does."""
    for scale in WEIGHT_SCALES:
        try:
            other = run_real(build, inputs, seed=1, scale=scale)
        except Exception as error:  # noqa: BLE001 - what other weights lead the model into is the evidence itself
            return f"a real run with weights {scale} times as large ends with {_message(error)}"
        if differing := compare(real.seen, other.seen).calls_differ:
            return f"a real run with other weights differs in {differing} calls"
    return ""


def _held(status: str, held: Comparison) -> Record:
    return {"status": status, "calls": held.calls_real, "calls_differ": held.calls_differ}


def _failure(status: str, error: Exception) -> Record:
    tail = _without_place("".join(traceback.format_exception(error)))[-TRACEBACK_CHARACTERS:]
    return {"status": status, "message": _message(error), "traceback": tail if status == "failed" else ""}


def _message(error: Exception) -> str:
    return _without_place(f"{type(error).__name__}: {error}")[:300]


def _without_place(text: str) -> str:
    """Where the libraries are installed is nobody's business but the machine's."""
    return re.sub(r"/[^\s'\"]+/site-packages/", "", text)


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
