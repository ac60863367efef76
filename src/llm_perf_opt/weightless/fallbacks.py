"""Ops that cannot be propagated on meta tensors: decompose, stand in, or refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.recording import flat_tensors
from llm_perf_opt.weightless.refusal import unknown_op
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, spec_of_tensor

if TYPE_CHECKING:
    from llm_perf_opt.weightless.engine import Engine

_CPU = torch.device("cpu")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True, slots=True)
class Done:
    """The output of an op that was carried out, and recorded, some other way and must not be cached."""

    value: Any


def is_composite(func: Any) -> bool:
    """Whether torch defines the op by other ops."""
    return bool(func._can_decompose()) and bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


def without_meta(engine: Engine, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception) -> Done:
    """Carry out an op whose meta kernel raised, or raise what the model itself would have seen."""
    if not _is_missing_kernel(error):
        raise error
    if is_composite(func):
        with engine:
            return Done(func.decompose(*args, **kwargs))
    output = _stand_in(engine, func, args, kwargs, error)
    if engine.recorder is not None:
        engine.recorder.observe(func, args, kwargs, output)
    return Done(output)


def _is_missing_kernel(error: Exception) -> bool:
    """Whether the meta kernel is absent or needs values, as opposed to arguments that are wrong for any kernel."""
    text = str(error)
    return (
        isinstance(error, NotImplementedError)
        or "DataDependent" in type(error).__name__
        or "DynamicOutputShape" in type(error).__name__
        or "no fake impl" in text
        or "meta tensor" in text.lower()
        or ("meta" in text and any(word in text for word in ("not implemented", "nonzero", "item", "backend")))
    )


def _stand_in(engine: Engine, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], cause: Exception) -> Any:
    """Run the CPU kernel on invented values; float outputs become ghosts again, the others keep what came out."""
    inputs = [t for value in (*args, *kwargs.values()) for t in flat_tensors(value) if type(t) is Ghost]
    if sum(ghost.numel() for ghost in inputs) > engine.limits.stand_in:
        raise unknown_op(func, engine.recorder, cause) from cause
    engine.oracle.note(str(func), "CPU kernel on invented values")

    def invent(value: Any) -> Any:
        if type(value) is Ghost:
            return engine.materialise(value, str(func))
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [invent(item) for item in value]
        return value

    named = {name: _CPU if name == "device" else invent(value) for name, value in kwargs.items()}
    try:
        return ghosts_for_floats(func(*[invent(value) for value in args], **named))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        raise unknown_op(func, engine.recorder, cause) from error


def ghosts_for_floats(value: Any) -> Any:
    """An op's real result with every float tensor replaced by a ghost."""
    if isinstance(value, torch.Tensor):
        return new_ghost(spec_of_tensor(value)) if value.dtype in FLOAT_DTYPES else value
    if isinstance(value, (list, tuple)):
        items = [ghosts_for_floats(item) for item in value]
        return items if type(value) is list else tuple(items) if type(value) is tuple else type(value)(items)
    return value
