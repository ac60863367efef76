"""Ops that cannot be propagated on meta tensors: decompose, stand in, or refuse; and higher-order ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.weightless.dispatcher import Dispatcher
from llm_perf_opt.weightless.ghost import Ghost, new_ghost
from llm_perf_opt.weightless.recording import flat_tensors
from llm_perf_opt.weightless.refusal import Refusal, place, unknown_op
from llm_perf_opt.weightless.spec import FLOAT_DTYPES, contiguous_spec, spec_of_tensor

_WRAPPERS = frozenset({"wrap", "checkpoint", "tag_activation_checkpoint", "invoke_subgraph"})
_MAX_ITERATIONS = 10_000


def run_higher_order(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an op that is no `OpOverload`."""
    if not isinstance(func, torch._ops.HigherOrderOperator):
        return func(*args, **kwargs)  # torchbind objects such as record_function
    if func in engine.user_rules:
        return engine.user_rules[func](engine, *args, **kwargs)
    name = func.name()
    if name == "flex_attention":
        return _flex_attention(engine, func, args, kwargs)
    with engine:
        if name == "cond":
            condition, when_true, when_false, operands = args
            return (when_true if bool(condition) else when_false)(*operands)
        if name == "while_loop":
            return _while_loop(*args)
        if name in _WRAPPERS:
            body = next(value for value in args if callable(value))
            return body(*[value for value in args if value is not body], **kwargs)
    raise Refusal(
        f"The higher-order op {name} cannot run without weights, {place(engine.recorder)}.",
        why="it hides Python functions from the dispatcher and no rule here unfolds it",
        fix="pass Engine(rules={torch.ops.higher_order." + name + ": function of the engine and the op's arguments})",
    )


def _flex_attention(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    query, _, value = args[:3]
    rows = tuple(query.shape[:-1])
    output = (
        new_ghost(contiguous_spec((*rows, value.shape[-1]), query.dtype)),
        new_ghost(contiguous_spec(rows, torch.float32)),
        new_ghost(contiguous_spec(rows, torch.float32)),
    )
    if engine.recorder is not None:
        engine.recorder.observe(func, args[:3], {}, output)
    return output


def _while_loop(condition: Any, body: Any, carried: Any, extra: Any) -> Any:
    for _ in range(_MAX_ITERATIONS):
        if not bool(condition(*carried, *extra)):
            break
        carried = body(*carried, *extra)
    return carried


_CPU = torch.device("cpu")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True, slots=True)
class Done:
    """The output of an op that was carried out, and recorded, some other way and must not be cached."""

    value: Any


def is_composite(func: Any) -> bool:
    """Whether torch defines the op by other ops."""
    return bool(func._can_decompose()) and bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


def without_meta(
    engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> Done:
    """Carry out an op after its meta kernel raised, or raise what the model itself would have seen."""
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
    text = error_text(error)
    # torch has no one class for it, so some errors are known by their text. Any other error is the model's own
    # mistake: it must reach the model, which may catch it.
    return (
        isinstance(error, NotImplementedError)
        or "DataDependent" in type(error).__name__
        or "DynamicOutputShape" in type(error).__name__
        or "no fake impl" in text
        or "meta tensor" in text.lower()
        or ("meta" in text and any(word in text for word in ("not implemented", "nonzero", "item", "backend")))
    )


def _stand_in(engine: Dispatcher, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], cause: Exception) -> Any:
    """Run the CPU kernel on invented values; float outputs become ghosts again, the others keep what came out."""
    inputs = [t for value in (*args, *kwargs.values()) for t in flat_tensors(value) if type(t) is Ghost]
    # The kernel runs for real, so its time and memory grow with its inputs: a large one is refused, by name.
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
