"""Higher-order ops: flex attention, control flow and wrappers, which carry Python functions as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from llm_perf_opt.weightless.ghost import new_ghost
from llm_perf_opt.weightless.refusal import Refusal, place
from llm_perf_opt.weightless.spec import contiguous_spec

if TYPE_CHECKING:
    from llm_perf_opt.weightless.engine import Engine

_WRAPPERS = frozenset({"wrap", "checkpoint", "tag_activation_checkpoint", "invoke_subgraph"})
_MAX_ITERATIONS = 10_000


def run_higher_order(engine: Engine, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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


def _flex_attention(engine: Engine, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
